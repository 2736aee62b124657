package terminal

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// modes follows the escape sequences of an output for what they leave changed.
// The zero value is a terminal as a shell has it.
type modes struct {
	state  parseState
	params []byte // of the control sequence under way

	private map[int]bool // DEC private modes that are not as they were: true is set
	keypad  bool         // application keypad
	styled  bool         // colours, bold, …
	drawing bool         // the first character set is line drawing
	other   bool         // xterm's modifyOtherKeys
	kitty   int          // levels of the kitty keyboard protocol
}

type parseState byte

const (
	ground parseState = iota
	escape
	charset // ESC ( takes one byte more
	control // CSI
	quoted  // a string (OSC, DCS, …), until BEL or ESC
)

// maxParams bounds a control sequence; a longer one is followed to its end and ignored.
const maxParams = 64

// restored are the private modes that are followed, and what a shell has.
var restored = map[int]bool{
	1:    false, // application cursor keys
	7:    true,  // wrap around
	9:    false, // mouse reports: X10, then the later forms
	25:   true,  // the cursor shows
	47:   false, // the alternate screen
	66:   false, // application keypad
	1000: false, 1001: false, 1002: false, 1003: false, 1005: false, 1006: false, 1015: false, 1016: false,
	1004: false,              // focus reports
	1047: false, 1049: false, // the alternate screen, with the cursor kept
	2004: false, // bracketed paste
	2026: false, // output held back until it is whole
}

func (m *modes) follow(b []byte) {
	for _, c := range b {
		m.next(c)
	}
}

func (m *modes) next(c byte) {
	switch {
	case c == 0x1b:
		m.state = escape
		return
	case c == 0x18 || c == 0x1a: // CAN and SUB end any sequence
		m.state = ground
		return
	}
	switch m.state {
	case ground:
	case escape:
		m.escaped(c)
	case charset:
		m.drawing = c == '0'
		m.state = ground
	case control:
		switch {
		case c >= 0x40 && c <= 0x7e:
			m.state = ground
			if len(m.params) <= maxParams {
				m.controlled(string(m.params), c)
			}
		case c >= 0x20 && len(m.params) <= maxParams:
			m.params = append(m.params, c)
		}
	case quoted:
		if c == 0x07 {
			m.state = ground
		}
	}
}

func (m *modes) escaped(c byte) {
	m.state = ground
	switch c {
	case '[':
		m.state, m.params = control, m.params[:0]
	case ']', 'P', 'X', '^', '_':
		m.state = quoted
	case '(':
		m.state = charset
	case '=':
		m.keypad = true
	case '>':
		m.keypad = false
	case 'c':
		*m = modes{} // a full reset
	}
}

// controlled takes a control sequence.
func (m *modes) controlled(params string, final byte) {
	switch final {
	case 'h', 'l':
		list, private := strings.CutPrefix(params, "?")
		if !private {
			return
		}
		for p := range strings.SplitSeq(list, ";") {
			n, err := strconv.Atoi(p)
			if was, known := restored[n]; err == nil && known {
				m.set(n, final == 'h', was)
			}
		}
	case 'm':
		if rest, ok := strings.CutPrefix(params, ">4"); ok {
			m.other = strings.TrimLeft(rest, ";0") != ""
		} else if params == "" || params[0] >= '0' && params[0] <= ';' {
			m.styled = strings.Trim(params, "0;") != ""
		}
	case 'p':
		if params == "!" { // a soft reset
			m.keypad, m.styled, m.drawing = false, false, false
			for _, n := range []int{1, 7, 25, 66} {
				delete(m.private, n)
			}
		}
	case 'u':
		switch {
		case strings.HasPrefix(params, ">"):
			m.kitty = min(m.kitty+1, 99)
		case strings.HasPrefix(params, "<"):
			n, err := strconv.Atoi(params[1:])
			if err != nil {
				n = 1
			}
			m.kitty = max(m.kitty-n, 0)
		}
	}
}

func (m *modes) set(n int, on, was bool) {
	if on == was {
		delete(m.private, n)
		return
	}
	if m.private == nil {
		m.private = map[int]bool{}
	}
	m.private[n] = on
}

// undo returns what puts everything back, "" where nothing is changed.
func (m *modes) undo() string {
	var b strings.Builder
	if m.state != ground {
		b.WriteString("\x18") // a sequence was cut off
	}
	if m.kitty > 0 {
		fmt.Fprintf(&b, "\x1b[<%du", m.kitty)
	}
	if m.other {
		b.WriteString("\x1b[>4m")
	}
	if m.styled {
		b.WriteString("\x1b[m")
	}
	if m.drawing {
		b.WriteString("\x1b(B")
	}
	// The alternate screen last but for the cursor, which leaves with it.
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(m.private))) {
		final := 'h'
		if m.private[n] {
			final = 'l'
		}
		fmt.Fprintf(&b, "\x1b[?%d%c", n, final)
	}
	if m.keypad {
		b.WriteString("\x1b>")
	}
	return b.String()
}
