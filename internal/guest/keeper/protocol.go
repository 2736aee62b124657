package keeper

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
)

// Command is what a keeper starts.
type Command struct {
	Seq    uint32 // comes back with each reply
	Path   string
	Dir    string
	Argv   []string
	Env    []string
	Switch bool // to UID, GID and Groups
	UID    uint32
	GID    uint32
	Groups []uint32
	TTY    bool // its stdin is a terminal, and becomes its controlling one
	Extra  int  // the number that the fourth file gets; 0: there is none
}

// MaxCommand is the most bytes of an encoded command. The kernel takes less of
// arguments and environment.
const MaxCommand = 8 << 20

var errCommand = errors.New("malformed command")

// errNUL is a string that no system call can take.
var errNUL = errors.New("a NUL byte in an argument or a variable")

const commandFixed = 7 * 4

// append encodes a command, its length ahead.
func (c *Command) append(b []byte) ([]byte, error) { //nolint:unparam // as its like in the standard library
	start := len(b)
	flags := uint32(c.Extra) << 2
	if c.Switch {
		flags |= 1
	}
	if c.TTY {
		flags |= 2
	}
	for _, v := range []uint32{
		0, c.Seq, c.UID, c.GID, flags, uint32(len(c.Groups)), uint32(len(c.Argv)), uint32(len(c.Env)),
	} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, g := range c.Groups {
		b = binary.LittleEndian.AppendUint32(b, g)
	}
	for _, list := range [][]string{{c.Path, c.Dir}, c.Argv, c.Env} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return nil, errNUL
			}
			b = append(append(b, s...), 0)
		}
	}
	if len(b)-start-4 > MaxCommand {
		return nil, errors.New("argument list too long")
	}
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b, nil
}

// parseCommand decodes what append made, without the length.
func parseCommand(b []byte) (c Command, err error) {
	if len(b) < commandFixed {
		return c, errCommand
	}
	word := func() uint32 {
		v := binary.LittleEndian.Uint32(b)
		b = b[4:]
		return v
	}
	c.Seq, c.UID, c.GID = word(), word(), word()
	flags, groups, argv, env := word(), word(), word(), word()
	c.Switch, c.TTY, c.Extra = flags&1 != 0, flags&2 != 0, int(flags>>2)
	if c.Extra > math.MaxUint8 || uint64(groups)*4 > uint64(len(b)) || uint64(argv)+uint64(env) > uint64(len(b)) {
		return c, errCommand
	}
	for range groups {
		c.Groups = append(c.Groups, word())
	}
	rest := string(b)
	next := func() string {
		s, after, ok := strings.Cut(rest, "\x00")
		if !ok {
			err = errCommand
		}
		rest = after
		return s
	}
	c.Path, c.Dir = next(), next()
	c.Argv = make([]string, argv)
	for i := range c.Argv {
		c.Argv[i] = next()
	}
	c.Env = make([]string, env)
	for i := range c.Env {
		c.Env[i] = next()
	}
	if rest != "" {
		err = errCommand
	}
	return c, err
}

// Event says what a Reply tells.
type Event uint8

// The events of a command, in this order. Failed stands alone.
const (
	Started Event = iota + 1 // PID is its process
	Failed                   // Errno is why it was not started
	Exited                   // Status is its end; Empty: and nothing is left of its tree
	Gone                     // nothing is left of its tree; it is told once, here or with Exited
	Lost                     // the keeper died; nothing more comes
)

// Reply is what a keeper tells about its command.
type Reply struct {
	Event  Event
	Empty  bool
	Seq    uint32
	PID    int
	Status uint32 // as wait(2) gives it
	Errno  uint32
}

const replySize = 16

func (r Reply) encode() (b [replySize]byte) {
	b[0] = byte(r.Event)
	if r.Empty {
		b[1] = 1
	}
	binary.LittleEndian.PutUint32(b[4:], r.Seq)
	v := r.Status
	if r.Event == Started {
		v = uint32(r.PID)
	}
	binary.LittleEndian.PutUint32(b[8:], v)
	binary.LittleEndian.PutUint32(b[12:], r.Errno)
	return b
}

func parseReply(b [replySize]byte) Reply {
	r := Reply{
		Event: Event(b[0]), Empty: b[1] == 1,
		Seq:   binary.LittleEndian.Uint32(b[4:]),
		Errno: binary.LittleEndian.Uint32(b[12:]),
	}
	v := binary.LittleEndian.Uint32(b[8:])
	if r.Event == Started {
		r.PID = int(v)
	} else {
		r.Status = v
	}
	return r
}
