package archive

import (
	"io/fs"
	"syscall"
)

// inode names a file apart from its names; several says that it has more than one.
func inode(info fs.FileInfo) (id [2]uint64, several bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink < 2 {
		return id, false
	}
	return [2]uint64{uint64(st.Dev), st.Ino}, true
}
