package dashboard

import (
	"encoding/json"
	"hash/fnv"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"

	"sandkeeper/internal/control"
	"sandkeeper/web/templates"
)

// filter is what narrows the table, and where its page begins.
type filter struct {
	query  string
	state  control.State
	before string // only those whose order is less; "" for the first page
}

// readFilter reads it from an address; extra are the other parameters of that address.
func readFilter(u *url.URL, extra ...string) (filter, *params) {
	p := query(u, append([]string{"q", "state", "before"}, extra...)...)
	return filter{query: strings.TrimSpace(p.text("q")), state: p.state(), before: p.text("before")}, p
}

// address is the table's, or the stream's, address with this filter.
func (f filter) address(path, before string, more ...string) string {
	v := url.Values{}
	for name, value := range map[string]string{"q": f.query, "state": string(f.state), "before": before} {
		if value != "" {
			v.Set(name, value)
		}
	}
	for i := 0; i+1 < len(more); i += 2 {
		v.Set(more[i], more[i+1])
	}
	if len(v) == 0 {
		return path
	}
	return path + "?" + v.Encode()
}

func (f filter) active() bool { return f.query != "" || f.state != "" }

// matches reports whether an environment is let through.
func (f filter) matches(v *control.View) bool {
	if f.state != "" && v.State != f.state {
		return false
	}
	if f.query == "" {
		return true
	}
	q := strings.ToLower(f.query)
	image := ""
	if v.Image != nil {
		image = *v.Image
	}
	for _, s := range []string{v.Task, v.Owner, v.Name, v.ID, image} {
		if strings.Contains(strings.ToLower(s), q) {
			return true
		}
	}
	return false
}

func (f filter) model() templates.Filter {
	m := templates.Filter{Query: f.query, State: string(f.state), Active: f.active(), States: []templates.Choice{{Label: "any state", Selected: f.state == ""}}}
	for _, s := range states {
		m.States = append(m.States, templates.Choice{Value: string(s), Label: string(s), Selected: f.state == s})
	}
	return m
}

// board is one page of the table as one reader has it before their eyes. It
// follows the plane by changes, so that an update costs what changed.
type board struct {
	filter filter
	size   int

	states map[string]control.State // of every environment there is, for the counts
	order  []string                 // of the rows shown, descending
	shown  map[string]*control.View // by id
	floor  string                   // what is less is on an older page; "" on the last one
}

// newBoard sets out the page that holds of these views.
func newBoard(f filter, size int, views []control.View) *board {
	b := &board{filter: f, size: size, states: make(map[string]control.State, len(views)), shown: map[string]*control.View{}}
	type row struct {
		order string
		view  *control.View
	}
	var rows []row
	for i := range views {
		v := &views[i]
		b.states[v.ID] = v.State
		if !f.matches(v) {
			continue
		}
		if order := orderOf(v); f.before == "" || order < f.before {
			rows = append(rows, row{order, v})
		}
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i].order > rows[j].order })
	if len(rows) > size {
		rows = rows[:size]
		b.floor = rows[size-1].order
	}
	for _, r := range rows {
		v := *r.view // lets go of the other views
		b.order = append(b.order, r.order)
		b.shown[v.ID] = &v
	}
	return b
}

// views are those on the page, newest first.
func (b *board) views() []*control.View {
	out := make([]*control.View, len(b.order))
	for i, order := range b.order {
		_, id, _ := strings.Cut(order, ".")
		out[i] = b.shown[id]
	}
	return out
}

// fingerprint tells one state of the page's rows from another: all that is
// shown of them but the time that goes by.
func (b *board) fingerprint() string {
	h := fnv.New64a()
	enc := json.NewEncoder(h)
	for _, v := range b.views() {
		still := *v
		still.Now, still.RemainingMS = control.Time{}, nil
		_ = enc.Encode(still) // a view is plain data, and a hash takes everything
	}
	return strconv.FormatUint(h.Sum64(), 36)
}

// wanting reports whether so many rows have gone that the page should be filled
// again from the one after it.
func (b *board) wanting() bool { return b.floor != "" && len(b.order) < (b.size+1)/2 }

// older is the cursor of the next page; "" where there is none.
func (b *board) older() string {
	return b.floor
}

// move is what a change of an environment means to the page.
type move int

const (
	moveNone   move = iota // it is not on the page
	moveChange             // its row changes
	moveArrive             // it gets a row
	moveLeave              // its row goes: it is on another page now
	moveGone               // its row goes: the environment is removed
)

// apply takes in a change: v is how the environment is now, nil where it is
// removed. was is how the page had it. dropped is the id of the row at the
// page's end that an arrival pushed out, "" if none.
func (b *board) apply(id string, v *control.View) (m move, was *control.View, dropped string) {
	was = b.shown[id]
	if v == nil || v.State == control.Removed && b.filter.state != control.Removed {
		delete(b.states, id)
		if was == nil {
			return moveNone, nil, ""
		}
		b.take(was)
		return moveGone, was, ""
	}
	b.states[id] = v.State
	fits := b.filter.matches(v)
	switch {
	case was != nil && fits:
		b.shown[id] = v
		return moveChange, was, ""
	case was != nil:
		b.take(was)
		return moveLeave, was, ""
	case !fits || !b.within(orderOf(v)):
		return moveNone, nil, ""
	}
	return moveArrive, nil, b.put(v)
}

// within reports whether a row of this order belongs to this page.
func (b *board) within(order string) bool {
	return order >= b.floor && (b.filter.before == "" || order < b.filter.before)
}

func (b *board) put(v *control.View) (dropped string) {
	order := orderOf(v)
	i := sort.Search(len(b.order), func(i int) bool { return b.order[i] <= order })
	b.order = slices.Insert(b.order, i, order)
	b.shown[v.ID] = v
	if len(b.order) <= b.size {
		return ""
	}
	_, dropped, _ = strings.Cut(b.order[b.size], ".")
	b.order = b.order[:b.size]
	b.floor = b.order[b.size-1]
	delete(b.shown, dropped)
	return dropped
}

func (b *board) take(v *control.View) {
	order := orderOf(v)
	i := sort.Search(len(b.order), func(i int) bool { return b.order[i] <= order })
	if i < len(b.order) && b.order[i] == order {
		b.order = slices.Delete(b.order, i, i+1)
	}
	delete(b.shown, v.ID)
}

// summary counts all environments by state, in the order of life.
func (b *board) summary() templates.Summary {
	counts := map[control.State]int{}
	for _, s := range b.states {
		counts[s]++
	}
	out := templates.Summary{Total: len(b.states)}
	for _, s := range states {
		if n := counts[s]; n > 0 {
			out.States = append(out.States, templates.Count{State: string(s), N: n})
		}
	}
	return out
}

// empty says what stands in the place of a table without rows.
func (b *board) empty() templates.Empty {
	switch {
	case len(b.order) > 0:
		return ""
	case b.filter.active() || b.filter.before != "":
		return templates.EmptyNoMatch
	}
	return templates.EmptyNone
}
