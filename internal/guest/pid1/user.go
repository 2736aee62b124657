package pid1

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// User is who commands run as.
type User struct {
	Name   string // "" where the image does not name it
	Home   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
}

// LookupUser resolves an image's USER, "user[:group]" by names or numbers, in
// the texts of its /etc/passwd and /etc/group; "" is root. Numbers need no entry.
func LookupUser(spec, passwd, group string) (User, error) {
	name, groupName, hasGroup := strings.Cut(spec, ":")
	if name == "" {
		name = "0"
	}
	u := User{Home: "/"}
	entry := find(passwd, 7, func(f []string) bool { return f[0] == name })
	if entry == nil {
		if _, err := id(name); err == nil {
			entry = find(passwd, 7, func(f []string) bool { return f[2] == name })
		}
	}
	switch {
	case entry != nil:
		var err error
		if u.UID, err = id(entry[2]); err != nil {
			return User{}, fmt.Errorf("user %q: %w", name, err)
		}
		if u.GID, err = id(entry[3]); err != nil {
			return User{}, fmt.Errorf("user %q: %w", name, err)
		}
		u.Name = entry[0]
		if entry[5] != "" {
			u.Home = entry[5]
		}
	default:
		var err error
		if u.UID, err = id(name); err != nil {
			return User{}, fmt.Errorf("user %q is not in the image's /etc/passwd", name)
		}
		if u.UID == 0 {
			u.Name, u.Home = "root", "/root"
		}
	}
	if hasGroup && groupName != "" {
		entry := find(group, 3, func(f []string) bool { return f[0] == groupName })
		number := groupName
		if entry != nil {
			number = entry[2]
		}
		var err error
		if u.GID, err = id(number); err != nil {
			return User{}, fmt.Errorf("group %q is not in the image's /etc/group", groupName)
		}
		return u, nil
	}
	if u.Name == "" {
		return u, nil
	}
	find(group, 4, func(f []string) bool {
		if gid, err := id(f[2]); err == nil && gid != u.GID && slices.Contains(strings.Split(f[3], ","), u.Name) {
			u.Groups = append(u.Groups, gid)
		}
		return false
	})
	return u, nil
}

// find returns the fields of the first entry that fits, of those with at least n fields.
func find(text string, n int, fits func([]string) bool) []string {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) >= n && !strings.HasPrefix(f[0], "#") && fits(f) {
			return f
		}
	}
	return nil
}

func id(s string) (uint32, error) {
	v, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is no id", s)
	}
	return uint32(v), nil
}

// root reports whether u is what the guest itself is.
func (u *User) root() bool { return u.UID == 0 && u.GID == 0 && len(u.Groups) == 0 }

// do calls fn with the rights of u in the file system. fn must not start
// goroutines that touch files: the rights are of the thread that calls it.
func (u *User) do(fn func() error) error {
	if u.root() {
		return fn()
	}
	runtime.LockOSThread()
	own, err := unix.Getgroups()
	if err == nil {
		err = become(u.UID, u.GID, u.Groups)
	}
	if err == nil {
		err = fn()
	}
	groups := make([]uint32, len(own))
	for i, g := range own {
		groups[i] = uint32(g)
	}
	if become(0, 0, groups) == nil {
		runtime.UnlockOSThread()
	} // else the thread ends with this goroutine, and nobody else runs with these rights
	return err
}

// become sets the calling thread's rights in the file system. The kernel takes
// root's overriding capabilities with the user id, and gives them back with it.
func become(uid, gid uint32, groups []uint32) error {
	var p unsafe.Pointer
	if len(groups) > 0 {
		p = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(p), 0); errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	unix.SetfsgidRetGid(int(gid))
	unix.SetfsuidRetUid(int(uid))
	// Neither reports a failure: asking for an id that cannot be tells what is set.
	if g, _ := unix.SetfsgidRetGid(-1); g != int(gid) {
		return os.NewSyscallError("setfsgid", unix.EPERM)
	}
	if v, _ := unix.SetfsuidRetUid(-1); v != int(uid) {
		return os.NewSyscallError("setfsuid", unix.EPERM)
	}
	return nil
}
