package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// version is set by the build; one without it says what the toolchain recorded.
var version string

// usageError is a call or a configuration that cannot be right.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

func isUsage(err error) bool {
	_, ok := errors.AsType[*usageError](err)
	return ok
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "sandkeeper",
		Short: "A control plane for the terminal sandboxes of AI agents, with its dashboard",
		Long: `Sandkeeper keeps the sandboxes that AI agents work in: a persistent one outlives the
agent's turn and is stopped when it has been idle for its lifetime, any other goes
with the turn. Operators watch, pin and stop them in the browser.

  sandkeeper serve        start it; it prints a link to sign in with`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			return usagef("--%s is %q: %w", e.GetFlag().Name, e.GetValue(), e.Unwrap())
		}
		return usagef("%w; see --help", err)
	})
	serve := newServe()
	root.AddCommand(serve, newAttach(), newToken(), newPrune(), newBackup(), newRestore(), newCheck(), newVersion())
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		help(cmd, args)
		if cmd == root {
			explainSettings(cmd.OutOrStdout(), serve)
		}
	})
	return root
}

// explainSettings lists every setting, with the variable in its brackets.
func explainSettings(w io.Writer, serve *cobra.Command) {
	fmt.Fprintf(w, "\nSettings of serve, each a flag, a variable and a key of the file by one name:\n%s\n", serve.LocalFlags().FlagUsages())
	fmt.Fprintln(w, "By variable or key of the file alone:")
	for _, s := range newConfig().settings() {
		if s.secret {
			fmt.Fprintf(w, "      %-34s%s\n", s.variable(), s.usage)
		}
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "sandkeeper %s %s %s/%s\n",
				buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// noArgs is cobra.NoArgs as a usage error that names what was not understood.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s does not know %q; see --help", cmd.CommandPath(), args[0])
	}
	return nil
}

func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "devel"
	}
	return info.Main.Version
}
