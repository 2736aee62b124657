package terminal

import "testing"

func TestWhatAProgramChangedOfTheTerminalIsUndone(t *testing.T) {
	for name, tc := range map[string]struct{ output, undo string }{
		"nothing":                             {"plain text\r\n", ""},
		"the alternate screen":                {"\x1b[?1049hfull screen", "\x1b[?1049l"},
		"the alternate screen, left":          {"\x1b[?1049hfull screen\x1b[?1049l", ""},
		"a hidden cursor":                     {"\x1b[?25l", "\x1b[?25h"},
		"several at once":                     {"\x1b[?1049;25l\x1b[?1000;1006h", "\x1b[?1006l\x1b[?1000l\x1b[?25h"},
		"the screen ahead of the cursor":      {"\x1b[?25l\x1b[?1049h\x1b[?1h", "\x1b[?1049l\x1b[?25h\x1b[?1l"},
		"set twice":                           {"\x1b[?2004h\x1b[?2004h", "\x1b[?2004l"},
		"a mode that is not followed":         {"\x1b[?12h\x1b[4h", ""},
		"the keypad":                          {"\x1b=", "\x1b>"},
		"the keypad, left":                    {"\x1b=\x1b>", ""},
		"colours":                             {"\x1b[1;31mred", "\x1b[m"},
		"colours, left":                       {"\x1b[1;31mred\x1b[0m", ""},
		"colours, left in short":              {"\x1b[31mred\x1b[m", ""},
		"line drawing":                        {"\x1b(0lqk", "\x1b(B"},
		"line drawing, left":                  {"\x1b(0lqk\x1b(B", ""},
		"longer forms of keys":                {"\x1b[>4;2m", "\x1b[>4m"},
		"longer forms of keys, left":          {"\x1b[>4;2m\x1b[>4;0m", ""},
		"longer forms of keys, left in short": {"\x1b[>4;2m\x1b[>4m", ""},
		"kitty's keys":                        {"\x1b[>1u\x1b[>5u", "\x1b[<2u"},
		"kitty's keys, left":                  {"\x1b[>1u\x1b[<u", ""},
		"kitty's keys are asked for":          {"\x1b[?u", ""},
		"a full reset":                        {"\x1b[?1049h\x1b[31m\x1bc", ""},
		"a soft reset":                        {"\x1b[?25l\x1b[31m\x1b[?2004h\x1b[!p", "\x1b[?2004l"},
		"a title is no sequence":              {"\x1b]0;[?25l\x07x", ""},
		"a title that ends by ST":             {"\x1b]0;title\x1b\\\x1b[?25l", "\x1b[?25h"},
		"a sequence that was broken off":      {"\x1b[?25\x18l", ""},
		"a sequence that was cut":             {"\x1b[?2", "\x18"},
		"a sequence beyond all length":        {"\x1b[" + string(make([]byte, 100)) + "0000000000000000000000000000000000000000000000000000000000000000000000m\x1b[?25l", "\x1b[?25h"},
	} {
		t.Run(name, func(t *testing.T) {
			var whole, apart modes
			whole.follow([]byte(tc.output))
			for i := range tc.output {
				apart.follow([]byte{tc.output[i]})
			}
			if got := whole.undo(); got != tc.undo {
				t.Errorf("undo is %q, not %q", got, tc.undo)
			}
			if got := apart.undo(); got != tc.undo {
				t.Errorf("byte by byte undo is %q, not %q", got, tc.undo)
			}
			whole.follow([]byte(whole.undo()))
			if got := whole.undo(); got != "" {
				t.Errorf("undone, there is %q", got)
			}
		})
	}
}

func FuzzModes(f *testing.F) {
	f.Add([]byte("\x1b[?1049h\x1b[?25l\x1b[1;31mred\x1b]0;title\x07\x1b(0q"))
	f.Add([]byte("\x1b[>4;2m\x1b[>1u\x1b[!p\x1b[?9999999999999999999999h"))
	f.Fuzz(func(t *testing.T, output []byte) {
		var m modes
		m.follow(output)
		if len(m.params) > maxParams+1 || len(m.private) > len(restored) {
			t.Fatalf("%d bytes of params, %d modes", len(m.params), len(m.private))
		}
		m.follow([]byte(m.undo()))
		if got := m.undo(); got != "" {
			t.Fatalf("undone, there is %q", got)
		}
	})
}
