package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/spf13/cobra"

	"sandkeeper/internal/control"
	"sandkeeper/internal/db"
)

func newToken() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Look after tokens",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenCreate())
	return cmd
}

func newTokenCreate() *cobra.Command {
	c := newConfig()
	var spec tokenSpec
	cmd := &cobra.Command{
		Use:   "create --role ROLE",
		Short: "Make a token and print it, once",
		Long: `Make a token and print it, alone on its line. It is shown this once.

A server that runs on the data directory makes the token; where none runs, the
database is opened directly.`,
		Example: `  sandkeeper token create --role agent --owner alice --name laptop
  sandkeeper token create --role viewer --name wall-screen`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.load(cmd, "config", "data-dir"); err != nil {
				return err
			}
			if spec.Role == string(control.RoleAgent) && spec.Owner == "" {
				spec.Owner = defaultOwner
			}
			tok, err := createToken(cmd.Context(), c.dataDir, spec)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), tok)
			return err
		},
	}
	flags := cmd.Flags()
	flags.Var(choice(&spec.Role, string(control.RoleAgent), string(control.RoleOperator), string(control.RoleViewer)), "role", `what it may do: "agent", "operator" or "viewer"`)
	flags.StringVar(&spec.Owner, "owner", "", fmt.Sprintf("whose environments an agent's token sees (default %q)", defaultOwner))
	flags.StringVar(&spec.Name, "name", "", "the name that operators see (default the owner, or the role)")
	c.register(cmd, "config", "data-dir")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if spec.Role == "" {
			return usagef(`--role is needed: "agent", "operator" or "viewer"`)
		}
		return nil
	}
	return cmd
}

// createToken asks the server of the data directory, or does it without one.
func createToken(ctx context.Context, dir string, spec tokenSpec) (string, error) {
	var made adminToken
	err := callAdmin(ctx, dir, http.MethodPost, "/tokens", spec, &made)
	if !errors.Is(err, errNoServer) {
		return made.Token, err
	}
	if _, err := openInstallation(dir, ""); err != nil {
		return "", err
	}
	store, err := db.Open(filepath.Join(dir, databaseFile), db.Options{})
	if errors.Is(err, db.ErrLocked) {
		// A server may have begun meanwhile: it opens its socket right after the database.
		if again := callAdmin(ctx, dir, http.MethodPost, "/tokens", spec, &made); !errors.Is(again, errNoServer) {
			return made.Token, again
		}
	}
	if err != nil {
		return "", err
	}
	tok, err := storeTokens(store)(ctx, spec)
	return tok, errors.Join(err, store.Close())
}

// storeTokens makes tokens in a store; errors are for people.
func storeTokens(store *db.Store) tokenMaker {
	return func(ctx context.Context, spec tokenSpec) (string, error) {
		tok, err := store.CreateToken(ctx, db.TokenSpec{Role: control.Role(spec.Role), Owner: spec.Owner, Name: spec.Name})
		if e, ok := errors.AsType[*control.Error](err); ok {
			return "", errors.New(e.Message)
		}
		return tok, err
	}
}
