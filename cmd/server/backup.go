package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sandkeeper/internal/db"
)

func newBackup() *cobra.Command {
	c := newConfig()
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a copy of the database while the server goes on",
		Long: `Write a copy of the database to a new file, also while a server runs, and verify it.
The copy is of one instant. It has who may sign in (tokens as hashes alone), so it
is made for its owner's eyes; it has no files of sandboxes, which are on the engine.

"sandkeeper restore FILE" brings it back.`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.load(cmd, "config", "data-dir"); err != nil {
				return err
			}
			r, err := backup(cmd.Context(), c.dataDir, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", args[0], contents(r))
			return err
		},
	}
	c.register(cmd, "config", "data-dir")
	return cmd
}

func newRestore() *cobra.Command {
	c := newConfig()
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a backup in the place of the database",
		Long: `Put a backup in the place of the database, which may be damaged or missing. The
backup is verified first, and the database that was there is kept beside it. It is
refused while a server runs on the data directory.

What was made after the backup is unknown to the restored database: sandboxes of it
are stopped, kept, and shown as orphans, for an operator to adopt or purge.`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.load(cmd, "config", "data-dir"); err != nil {
				return err
			}
			return restore(cmd.Context(), c.dataDir, args[0], cmd.OutOrStdout())
		},
	}
	c.register(cmd, "config", "data-dir")
	return cmd
}

func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s needs one file; see --help", cmd.CommandPath())
	}
	return nil
}

// backup makes a verified copy at path, which must not exist.
func backup(ctx context.Context, dir, path string) (*db.Report, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s is there already: a backup never replaces a file", path)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".backup-*")
	if err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	defer os.Remove(tmp.Name())
	err = copyDatabase(ctx, dir, tmp)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return nil, err
	}
	r, err := db.VerifyFile(ctx, tmp.Name())
	if err != nil {
		return nil, err
	}
	if len(r.Problems) > 0 {
		return nil, fmt.Errorf("the database has %d faults, so there is no backup of it: see sandkeeper check; the first: %s", len(r.Problems), r.Problems[0])
	}
	if err := os.Link(tmp.Name(), path); err != nil { // unlike a rename it never replaces
		return nil, fmt.Errorf("backup: %w", err)
	}
	return r, nil
}

// copyDatabase asks the server of the data directory for a copy, or makes it without one.
func copyDatabase(ctx context.Context, dir string, w io.Writer) error {
	if err := streamAdmin(ctx, dir, "/backup", w); !errors.Is(err, errNoServer) {
		return err
	}
	path := filepath.Join(dir, databaseFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no database in %s: say with --data-dir where it is", dir)
	}
	store, err := db.Open(path, db.Options{})
	if err != nil {
		return err
	}
	_, err = store.WriteTo(w)
	return errors.Join(err, store.Close())
}

func restore(ctx context.Context, dir, from string, stdout io.Writer) error {
	var st adminStatus
	switch err := callAdmin(ctx, dir, http.MethodGet, "/status", nil, &st); {
	case err == nil:
		return fmt.Errorf("a server runs on this data as process %d: stop it first", st.PID)
	case !errors.Is(err, errNoServer):
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	path := filepath.Join(dir, databaseFile)
	kept, err := db.Restore(ctx, from, path)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s is restored from %s\n", path, from)
	if kept != "" {
		fmt.Fprintf(stdout, "the database that was there is %s\n", kept)
	}
	return nil
}

// contents says in a line what a database holds.
func contents(r *db.Report) string {
	return fmt.Sprintf("%d bytes: %d environments, %d removed lately, %d tasks, %d sessions, %d commands, events %d to %d, %d tokens, %d orphans",
		r.Bytes, len(r.Envs), r.Removed, r.Tasks, r.Sessions, r.Execs, r.FirstEvent, r.LastEvent, r.Tokens, r.Orphans)
}
