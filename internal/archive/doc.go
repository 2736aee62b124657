// Package archive writes a folder as a tar, and a tar into a folder.
//
// Policy. Both stay in the folder: what is named by a path, a link or a race
// with who changes the folder meanwhile is found in it or not at all. Files,
// folders, symbolic links and hard links keep their modes; files and links are
// replaced, folders are filled. Owners are those of who extracts. A symbolic link
// is kept as it is, wherever it points, and is not followed out of the folder.
// Sockets, pipes and devices are left out of a tar, and refused in one.
//
// On failure. Pack fails rather than leave out what it cannot read. Unpack stops
// at the entry that fails and says which and how many came before it; those stay,
// that one is as it was: each file comes to its name whole or not at all.
package archive

import (
	"errors"
	"fmt"
	"strings"
)

// Do runs one step on the file system, for instance with the rights of a user.
// Nothing waits for the other end of a stream in a step.
type Do func(step func() error) error

// Errors of an archive, which an EntryError names the entry of.
var (
	// ErrName is a name that leads out of the folder.
	ErrName = errors.New("its name leads out of the folder")
	// ErrType is an entry that is neither file, folder nor link.
	ErrType = errors.New("it is no file, folder or link")
	// ErrCut is an archive that ends before its end.
	ErrCut = errors.New("the archive is cut off")
	// ErrFormat is what is no tar.
	ErrFormat = errors.New("this is no tar archive")
	// ErrChanged is a file that became shorter while it was read.
	ErrChanged = errors.New("it changed while it was read")
	// ErrDeep is a folder below too many others.
	ErrDeep = errors.New("it lies too deep")
)

// EntryError is a failure at one entry.
type EntryError struct {
	Entry string
	Err   error
}

func (e *EntryError) Error() string {
	return fmt.Sprintf("entry %q: %v", clip(e.Entry), e.Err)
}
func (e *EntryError) Unwrap() error { return e.Err }

// clip bounds what a message repeats of a name.
func clip(s string) string {
	const most = 512
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
