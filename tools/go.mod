// The tools of make lint, apart from the program's own dependencies.
module sandkeeper/tools

go 1.26.0
