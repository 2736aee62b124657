package pid1

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAShortOutputIsWhole(t *testing.T) {
	s := &newOutput(newBudget()).out
	var want bytes.Buffer
	for i := range 5000 {
		line := bytes.Repeat([]byte{byte('a' + i%26)}, i%150)
		s.Write(line)
		want.Write(line)
	}
	got, omitted := s.join(want.Len())
	if omitted != 0 || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%d of %d bytes, %d omitted", len(got), want.Len(), omitted)
	}
}

func TestALongOutputKeepsItsFirstAndLastPart(t *testing.T) {
	for _, chunk := range []int{1000, 70_000, 3 << 20} {
		s := &newOutput(newBudget()).out
		all := make([]byte, 3<<20)
		for i := range all {
			all[i] = byte(i*7 + i>>8)
		}
		for at := 0; at < len(all); at += chunk {
			s.Write(all[at:min(at+chunk, len(all))])
		}
		for _, limit := range []int{0, 1, 2, 10, 999, 50_000, 400_000} {
			got, omitted := s.join(limit)
			head := limit * 40 / 100
			// A cut may move where the bytes happen to look like a character.
			if len(got) > limit || len(got) < limit-6 || int64(len(got))+omitted != int64(len(all)) {
				t.Fatalf("chunk %d, limit %d: %d bytes, %d omitted", chunk, limit, len(got), omitted)
			}
			if !bytes.HasPrefix(all, got[:max(0, head-3)]) || !bytes.HasSuffix(all, got[min(head, len(got)):]) {
				t.Fatalf("chunk %d, limit %d: not the first and the last part", chunk, limit)
			}
		}
		if held := cap(s.head) + cap(s.ring); held > headSize+tailSize {
			t.Errorf("%d bytes are held", held)
		}
	}
}

func TestCutsAreBetweenCharacters(t *testing.T) {
	for _, unit := range []string{"a", "é", "€", "😀", "aé€😀", "\uFFFD"} {
		s := &newOutput(newBudget()).out
		text := strings.Repeat(unit, 2_000_000/len(unit))
		s.Write([]byte(text))
		for limit := range 200 {
			got, omitted := s.join(limit)
			if !utf8.Valid(got) {
				t.Fatalf("%q, limit %d: cut inside a character", unit, limit)
			}
			if len(got) > limit || len(got) < limit-6 || int64(len(got))+omitted != int64(len(text)) {
				t.Fatalf("%q, limit %d: %d bytes, %d omitted of %d", unit, limit, len(got), omitted, len(text))
			}
		}
	}
}

func TestBytesThatAreNoTextAreCutWhereTheLimitSays(t *testing.T) {
	s := &newOutput(newBudget()).out
	s.Write(bytes.Repeat([]byte{0xff}, 1000))
	if got, omitted := s.join(100); len(got) != 100 || omitted != 900 {
		t.Errorf("%d bytes, %d omitted", len(got), omitted)
	}
}

func TestTheBudgetTakesFromTheOldestEnded(t *testing.T) {
	b := newBudget()
	var all []*output
	for range 20 { // each keeps 1.16 MiB
		o := newOutput(b)
		o.out.Write(make([]byte, 2<<20))
		b.end(o)
		all = append(all, o)
	}
	lost := 0
	for lost < len(all) && all[lost].lost() {
		lost++
	}
	for i, o := range all[lost:] {
		if o.lost() {
			t.Errorf("%d is lost, and an older one is not", lost+i)
		}
	}
	if lost == 0 || lost > 10 {
		t.Errorf("%d of %d lost", lost, len(all))
	}
	checkBudget(t, b, all)
}

func TestRunningOnesShareTheBudgetAndNoneIsLost(t *testing.T) {
	b := newBudget()
	var all []*output
	for i := range 64 {
		o := newOutput(b)
		all = append(all, o)
		o.out.Write(bytes.Repeat([]byte{byte(i)}, 3<<20))
		o.out.Write([]byte("the end"))
	}
	checkBudget(t, b, all)
	for i, o := range all {
		got, _ := o.out.join(1000)
		if o.lost() || !bytes.HasSuffix(got, []byte("the end")) {
			t.Errorf("%d: lost %v, ends with %q", i, o.lost(), got[max(0, len(got)-7):])
		}
	}
	for _, o := range all {
		b.end(o)
		b.drop(o)
	}
	if b.left != budgetSize || len(b.ended) != 0 {
		t.Errorf("%d left of %d", b.left, budgetSize)
	}
}

func checkBudget(t *testing.T, b *budget, all []*output) {
	t.Helper()
	held := 0
	for _, o := range all {
		for _, s := range []*stream{&o.out, &o.err} {
			held += s.held
			if over := cap(s.head) + cap(s.ring) - s.held; over > firstSize {
				t.Errorf("%d bytes held beyond the account", over)
			}
		}
	}
	if b.left < 0 || held != budgetSize-b.left {
		t.Errorf("%d held, %d left of %d", held, b.left, budgetSize)
	}
}

// A stream gives the same as one that keeps everything.
func FuzzStream(f *testing.F) {
	f.Add(uint64(1), 100)
	f.Add(uint64(2), 400_000)
	f.Fuzz(func(t *testing.T, seed uint64, limit int) {
		r := rand.New(rand.NewPCG(seed, 0))
		limit = max(0, limit%400_001)
		s := &newOutput(newBudget()).out
		var all []byte
		for range r.IntN(40) {
			p := make([]byte, r.IntN(200_000))
			for i := range p {
				p[i] = 'a' + byte(r.IntN(26))
			}
			s.Write(p)
			all = append(all, p...)
		}
		got, omitted := s.join(limit)
		want := all
		if len(all) > limit {
			head := limit * 40 / 100
			want = append(bytes.Clone(all[:head]), all[len(all)-(limit-head):]...)
		}
		if !bytes.Equal(got, want) || omitted != int64(len(all)-len(want)) {
			t.Fatalf("%d written, limit %d: got %d bytes, omitted %d", len(all), limit, len(got), omitted)
		}
	})
}
