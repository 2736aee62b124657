// Command guest is PID 1 of every sandbox ("init"), and the keeper above each
// command that it runs ("keeper"). For the local engine it is also what stands
// around a sandbox ("launch") and what builds it ("build"). It is static and small;
// the server carries it for each architecture. It is not for people to run.
package main

import (
	"fmt"
	"os"

	"sandkeeper/internal/engine/local/launch"
	"sandkeeper/internal/guest/keeper"
	"sandkeeper/internal/guest/pid1"
)

func main() {
	mode := ""
	if len(os.Args) == 2 {
		mode = os.Args[1]
	}
	switch mode {
	case "init":
		os.Exit(pid1.Main())
	case launch.Arg:
		os.Exit(launch.Main())
	case launch.BuildArg:
		os.Exit(launch.Build())
	case keeper.Arg:
		if err := keeper.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "sandkeeper: keeper: "+err.Error())
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "sandkeeper's guest: started by an engine as PID 1 of a sandbox (guest init)")
		os.Exit(2)
	}
}
