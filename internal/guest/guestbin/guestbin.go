// Package guestbin holds the guest's binaries, which `make guest` builds before
// the server is built. Without them it compiles too, and Binary says what is
// missing.
package guestbin

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
)

// The pattern takes in the placeholder, so that an empty folder compiles.
//
//go:embed all:binaries
var binaries embed.FS

// Binary returns the guest for an architecture as Go names it ("amd64", "arm64").
func Binary(goarch string) ([]byte, error) {
	b, err := binaries.ReadFile("binaries/guest-linux-" + goarch)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no guest for linux/%s in this build: run `make guest` and build again", goarch)
	}
	return b, err
}
