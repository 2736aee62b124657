# Sandkeeper's commands. Needs Go, Node.js (for npm), and Docker to run.
#
#   make run         build everything and serve
#   make test        every check and test that this machine can run
#   make bench       measure against the engine's own tools
#   make fuzz        fuzz every decoder, FUZZTIME each
#   make lint        linters and known vulnerabilities
#   make screenshot  docs/screenshot.png, from the real page

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := build

GO ?= go
BUILDFLAGS ?= -trimpath
FUZZTIME ?= 30s
TESTFLAGS ?= -race -count 1 -timeout 40m
BENCHFLAGS ?= -benchtime 40x
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

.PHONY: build run test bench fuzz lint screenshot guest templates clean

build: guest assets templates
	$(GO) build $(BUILDFLAGS) -ldflags "-X main.version=$(VERSION)" -o bin/sandkeeper ./cmd/server

run: build
	bin/sandkeeper serve

# The guest goes into the server's binary, for each architecture that sandboxes have.

GUEST := internal/guest/guestbin/binaries
GUEST_SOURCES := go.mod go.sum $(shell find cmd/guest internal/guest internal/engine/local/launch -name '*.go' ! -name '*_test.go' 2>/dev/null)

guest: $(GUEST)/guest-linux-amd64 $(GUEST)/guest-linux-arm64

$(GUEST)/guest-linux-%: $(GUEST_SOURCES)
	CGO_ENABLED=0 GOOS=linux GOARCH=$* $(GO) build -trimpath -ldflags "-s -w" -o $@ ./cmd/guest

# The page: third-party scripts by npm, and Go from the templates.

include web/assets.mk

# What is generated is committed: each file of its own template alone, so that a fresh
# clone, whose files come in order of their names, need not build the generator.

templates: $(patsubst %.templ,%_templ.go,$(shell find web -name '*.templ' 2>/dev/null))

web/%_templ.go: web/%.templ
	cd web && $(GO) tool templ generate -f $*.templ
	@touch $@

# The checks come first: they are quick. Results are never cached (-count 1): what the
# end-to-end tests run is built and found by other processes, which the cache does not see.

test: guest assets
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	  [ -z "$$unformatted" ] || { echo "run gofmt -w on:" $$unformatted; exit 1; }
	@cd web && $(GO) tool templ generate -check -log-level error || { echo "the templates are newer than what was generated from them: run make templates"; exit 1; }
	$(GO) vet ./... && $(GO) vet -tags screenshot ./test
	$(GO) test -json $(TESTFLAGS) ./... | $(GO) run ./test/report

bench: guest assets
	$(GO) test ./bench -run '^$$' -bench . $(BENCHFLAGS) -timeout 10m

fuzz: guest
	@grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do \
	  grep -ho '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go | sed 's/^func //' | while read -r f; do \
	    $(GO) test "$$dir" -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME); \
	  done; \
	done

lint:
	$(GO) tool -modfile=tools/go.mod golangci-lint run ./...
	$(GO) tool -modfile=tools/go.mod govulncheck ./...

screenshot: guest assets templates
	$(GO) test -tags screenshot ./test -run '^TestScreenshot$$' -count 1

clean:
	rm -rf bin node_modules $(GUEST)/guest-linux-* $(THIRD_PARTY)
