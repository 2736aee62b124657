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
	"slices"

	"sandkeeper/internal/engine/local/launch"
	"sandkeeper/internal/guest/keeper"
	"sandkeeper/internal/guest/pid1"
)

func main() {
	mode := ""
	if len(os.Args) == 2 || len(os.Args) == 3 && slices.Contains([]string{launch.BuildArg, keeper.Arg}, os.Args[1]) {
		mode = os.Args[1]
	}
	switch mode {
	case "init":
		os.Exit(pid1.Main())
	case launch.Arg:
		os.Exit(launch.Main())
	case launch.BuildArg:
		os.Exit(launch.Build(os.Args[len(os.Args)-1]))
	case launch.InsideArg:
		os.Exit(inside())
	case keeper.Arg:
		if err := keep(); err != nil {
			fmt.Fprintln(os.Stderr, "sandkeeper: keeper: "+err.Error())
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "sandkeeper's guest: started by an engine as PID 1 of a sandbox (guest init)")
		os.Exit(2)
	}
}

// keep is the life of a keeper, which may have to wait for its sandbox.
func keep() error {
	if len(os.Args) == 3 {
		if err := launch.Confine(); err != nil {
			return err
		}
	}
	return keeper.Run()
}

// inside is the life of PID 1 of a sandbox of the local engine. What costs time
// is done before there is a plan for it.
func inside() int {
	builder, err := launch.Prepare()
	if err != nil {
		return launch.Refuse(err)
	}
	ready := pid1.Prepare()
	if err := ready.Rehearse(); err != nil {
		return launch.Refuse(err)
	}
	ready.Adopt(builder.Keeper)
	guest, code := builder.Become(ready.RehearseCommands)
	if guest == nil {
		return code
	}
	return ready.Run(guest, os.Environ())
}
