//go:debug containermaxprocs=0

// Command guest is PID 1 of every sandbox ("init"), and the keeper above each
// command that it runs ("keeper"). For the local engine it is also what stands
// around a sandbox ("launch") and what builds it ("build") and becomes its PID 1
// ("inside"). It is static and small;
// the server carries it for each architecture. It is not for people to run.
//
// The setting above keeps the runtime from holding files of the control group that
// it began in open: that is the host's, and no business of a sandbox.
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
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	switch mode {
	case "init":
		os.Exit(pid1.Main())
	case launch.Arg:
		os.Exit(launch.Main())
	case launch.BuildArg:
		os.Exit(launch.Build(os.Args[2]))
	case launch.InsideArg:
		os.Exit(inside())
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

// inside is the life of PID 1 of a sandbox of the local engine. What costs time
// is done before there is a plan for it.
func inside() int {
	if err := launch.Prepare(); err != nil {
		return launch.Refuse(err)
	}
	ready := pid1.Prepare()
	guest, code := launch.Become()
	if guest == nil {
		return code
	}
	return ready.Run(guest, os.Environ())
}
