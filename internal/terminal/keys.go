package terminal

import (
	"bytes"
	"fmt"
	"strings"
)

// Keys is a sequence of keys that is looked for in what is typed. Those before
// the last go through when they are typed: no key waits for the next one.
type Keys struct {
	name string
	keys [][][]byte // of each key the bytes that a terminal may send for it
}

// maxKeys bounds a sequence.
const maxKeys = 8

// ParseKeys reads a sequence such as "ctrl-p,ctrl-q" or "ctrl-],d": keys are
// single characters, or ctrl- with a letter or one of @ [ \ ] ^ _.
func ParseKeys(s string) (*Keys, error) {
	k := &Keys{name: s}
	for name := range strings.SplitSeq(s, ",") {
		key, err := encodings(name)
		if err != nil {
			return nil, err
		}
		k.keys = append(k.keys, key)
	}
	if len(k.keys) > maxKeys {
		return nil, fmt.Errorf("%q is more than %d keys", s, maxKeys)
	}
	return k, nil
}

// String returns the sequence as it was given.
func (k *Keys) String() string { return k.name }

// encodings are the bytes of one key. A program may have asked for longer forms
// of keys with ctrl: xterm's, or kitty's.
func encodings(name string) ([][]byte, error) {
	base, ctrl := strings.CutPrefix(strings.ToLower(name), "ctrl-")
	switch {
	case !ctrl && len(name) == 1 && name[0] > 0x20 && name[0] < 0x7f:
		return [][]byte{[]byte(name)}, nil
	case ctrl && len(base) == 1 && (base[0] >= 'a' && base[0] <= 'z' || strings.Contains(`@[\]^_`, base)):
		c := base[0]
		return [][]byte{
			{c & 0x1f},
			fmt.Appendf(nil, "\x1b[27;5;%d~", c),
			fmt.Appendf(nil, "\x1b[%d;5u", c),
		}, nil
	}
	return nil, fmt.Errorf(`%q is no key: one character, or ctrl- with a letter or one of @ [ \ ] ^ _`, name)
}

// Finder looks for a sequence in what is typed, over the borders of reads.
type Finder struct {
	keys *Keys
	tail []byte
}

// Finder begins anew.
func (k *Keys) Finder() *Finder { return &Finder{keys: k} }

// maxTail has room for the longest forms of the most keys.
const maxTail = 16 * maxKeys

// Find takes what was typed. found says that the sequence is complete: through
// is what came before its last key.
func (f *Finder) Find(typed []byte) (through []byte, found bool) {
	for i, c := range typed {
		if len(f.tail) == maxTail {
			f.tail = append(f.tail[:0], f.tail[maxTail/2:]...)
		}
		f.tail = append(f.tail, c)
		if last := ending(f.tail, f.keys.keys); last > 0 {
			f.tail = f.tail[:0]
			return typed[:max(i+1-last, 0)], true
		}
	}
	return typed, false
}

// ending returns how many bytes the last key has of a sequence that b ends with, else 0.
func ending(b []byte, keys [][][]byte) int {
	if len(keys) == 0 {
		return 0
	}
	rest, last := keys[:len(keys)-1], keys[len(keys)-1]
	for _, form := range last {
		before, ok := bytes.CutSuffix(b, form)
		if ok && (len(rest) == 0 || ending(before, rest) > 0) {
			return len(form)
		}
	}
	return 0
}
