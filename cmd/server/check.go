package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sandkeeper/internal/control"
	"sandkeeper/internal/db"
	"sandkeeper/internal/engine/docker"
)

func newCheck() *cobra.Command {
	c := newConfig()
	var noEngine bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Verify the database, and compare it with the engine",
		Long: `Verify every page, record and index of the database, and compare what it has with
what the engine has. It changes nothing, and runs beside a server too. Each fault is
printed on a line; it exits with 1 where there is one. With FILE it verifies that
file alone, as a backup.

An environment that is being started or torn down is not compared: it is on its way.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return oneFile(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.load(cmd, "config", "data-dir", "engine"); err != nil {
				return err
			}
			k := checker{config: c, out: cmd.OutOrStdout()}
			if len(args) == 1 {
				return k.file(cmd.Context(), args[0])
			}
			return k.installation(cmd.Context(), !noEngine)
		},
	}
	cmd.Flags().BoolVar(&noEngine, "no-engine", false, "do not ask the engine (default false)")
	c.register(cmd, "config", "data-dir", "engine")
	return cmd
}

type checker struct {
	config *config
	out    io.Writer
}

// file verifies one file that no server has.
func (k *checker) file(ctx context.Context, path string) error {
	r, err := db.VerifyFile(ctx, path)
	if err != nil {
		return err
	}
	return k.tell(r, nil)
}

// checkAgain is how long after a difference it must still be one, where a
// server runs: its copy and the engine's list are of two instants.
const checkAgain = 2 * time.Second

func (k *checker) installation(ctx context.Context, engine bool) error {
	r, served, err := k.read(ctx)
	if err != nil || !engine || len(r.Problems) > 0 {
		if err != nil {
			return err
		}
		return k.tell(r, nil)
	}
	differ, err := k.compare(ctx, r)
	if err != nil {
		return fmt.Errorf("the database is whole (%s), and the engine was not to be asked: %w", contents(r), err)
	}
	if served && len(differ) > 0 {
		select {
		case <-time.After(checkAgain):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if r, _, err = k.read(ctx); err != nil {
			return err
		}
		again, err := k.compare(ctx, r)
		if err != nil {
			return err
		}
		differ = slices.DeleteFunc(differ, func(d string) bool { return !slices.Contains(again, d) })
	}
	return k.tell(r, differ)
}

// read verifies the data's database: a copy of it, where a server has it open.
func (k *checker) read(ctx context.Context) (r *db.Report, served bool, err error) {
	path := filepath.Join(k.config.dataDir, databaseFile)
	r, err = db.VerifyFile(ctx, path)
	if !errors.Is(err, db.ErrLocked) {
		return r, false, err
	}
	tmp, err := os.CreateTemp(k.config.dataDir, ".check-*")
	if err != nil {
		return nil, true, fmt.Errorf("data directory: %w", err)
	}
	defer os.Remove(tmp.Name())
	err = streamAdmin(ctx, k.config.dataDir, "/backup", tmp)
	if err := errors.Join(err, tmp.Close()); err != nil {
		return nil, true, err
	}
	r, err = db.VerifyFile(ctx, tmp.Name())
	return r, true, err
}

// compare lists what the database says of sandboxes and the engine does not, or the other way round.
func (k *checker) compare(ctx context.Context, r *db.Report) (differ []string, err error) {
	in, err := readInstallation(k.config.dataDir)
	if err != nil {
		return nil, err
	}
	listed, err := k.listed(ctx, in)
	if err != nil {
		return nil, err
	}
	byEnv := map[string]control.SandboxStatus{}
	for _, s := range listed {
		byEnv[s.Env] = s
	}
	known := map[string]bool{}
	for _, e := range r.Envs {
		known[e.ID] = true
		s, there := byEnv[e.ID]
		switch {
		case e.State == control.Ready && !there:
			differ = append(differ, fmt.Sprintf("environment %s is ready, and the engine has no sandbox of it", e.ID))
		case e.State == control.Ready && s.State != control.SandboxRunning:
			differ = append(differ, fmt.Sprintf("environment %s is ready, and its sandbox %s is %s", e.ID, s.Name, s.State))
		case e.State == control.Dormant && there && s.State == control.SandboxRunning:
			differ = append(differ, fmt.Sprintf("environment %s is dormant, and its sandbox %s runs", e.ID, s.Name))
		}
	}
	for _, s := range listed {
		if !known[s.Env] {
			differ = append(differ, fmt.Sprintf("the engine has the sandbox %s (%s), and no environment has it", s.Name, s.State))
		}
	}
	return differ, nil
}

// listed asks the server for what its engine has, or asks the engine where no server runs.
func (k *checker) listed(ctx context.Context, in installation) ([]control.SandboxStatus, error) {
	var listed adminSandboxes
	err := callAdmin(ctx, k.config.dataDir, http.MethodGet, "/sandboxes", nil, &listed)
	if !errors.Is(err, errNoServer) {
		return listed.Sandboxes, err
	}
	eng, err := openEngine(ctx, k.config, &in, k.config.dataDir, docker.System(), true, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	all, err := eng.List(ctx)
	return all, errors.Join(err, eng.Close())
}

// tell prints what was found; faults are an error.
func (k *checker) tell(r *db.Report, differ []string) error {
	found := append(slices.Clone(r.Problems), differ...)
	for _, f := range found {
		fmt.Fprintln(k.out, f)
	}
	if len(found) > 0 {
		return fmt.Errorf("%d faults; a running server mends by itself what differs from the engine, and a backup (sandkeeper restore FILE) what is wrong with the file", len(found))
	}
	_, err := fmt.Fprintln(k.out, "whole: "+contents(r))
	return err
}
