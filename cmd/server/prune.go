package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"sandkeeper/internal/engine/docker"
)

func newPrune() *cobra.Command {
	c := newConfig()
	var id string
	var force bool
	cmd := &cobra.Command{
		Use:   "prune --instance ID",
		Short: "Remove everything that an instance left on the engine",
		Long: `Remove everything that an instance left on the engine: its sandboxes in whatever
state, their files, and what they share. What carries no label of that instance
is left alone. Each thing that was removed is printed on a line.

It is refused while a server of that instance runs on the data directory.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if id == "" {
				return usagef("--instance is needed: the id that the engine's label sandkeeper.instance shows")
			}
			if err := c.load(cmd, "config", "data-dir", "engine", "log-format", "log-level"); err != nil {
				return err
			}
			if err := refuseWhileServed(cmd.Context(), c.dataDir, id); err != nil && !force {
				return err
			}
			return prune(cmd, c, id)
		},
	}
	cmd.Flags().Var(instance(&id), "instance", "the instance whose things go")
	cmd.Flags().BoolVar(&force, "force", false, "also while a server of that instance runs (default false)")
	c.register(cmd, "config", "data-dir", "engine", "log-format", "log-level")
	return cmd
}

func refuseWhileServed(ctx context.Context, dir, id string) error {
	var st adminStatus
	err := callAdmin(ctx, dir, http.MethodGet, "/status", nil, &st)
	switch {
	case errors.Is(err, errNoServer):
		return nil
	case err != nil:
		return err
	case st.Instance == id:
		return fmt.Errorf("a server of the instance %q runs here as process %d: stop it first, or say --force", id, st.PID)
	}
	return nil
}

func prune(cmd *cobra.Command, c *config, id string) (err error) {
	// The data may know the engine, and has the sandboxes' sockets. Another
	// instance's data is none of ours.
	in, dir := installation{Instance: id}, c.dataDir
	if kept, err := readInstallation(dir); err == nil && kept.Instance == id {
		in = kept
	} else {
		if dir, err = os.MkdirTemp("", "sandkeeper-prune-*"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	eng, err := openEngine(cmd.Context(), c, &in, dir, docker.System(), true, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	removed, err := eng.Prune(cmd.Context())
	for _, line := range removed {
		fmt.Fprintln(cmd.OutOrStdout(), line)
	}
	return errors.Join(err, eng.Close())
}
