// Package templates draws the operators' pages. Its view models are plain
// structs of finished words and numbers: what a template is given has been
// decided, and a template decides nothing but how it looks. Text that people
// or agents chose is marked as such (Text) and always drawn isolated, so that
// neither markup nor a change of writing direction leaks out of it.
package templates

// Text is text that somebody else chose: a task, a name, a reason.
type Text = string

// Assets are the addresses of the static files. Htmx is "" in a build without
// the third-party scripts.
type Assets struct {
	Style, Script, Icon, Htmx, SSE string
}

// Frame is what every page has around it.
type Frame struct {
	Title   string
	Assets  Assets
	User    Text   // "" where nobody is signed in
	Role    string // "operator", "viewer"
	CSRF    string // the form token of this session; "" where none is needed
	SignOut bool   // signed in by a session that can be ended
	Version string
	Edition string // changes with the version and with the static files
	NowMS   int64  // the server's clock, for countdowns
	Stream  string // the address of the live stream; "" on a page that stands still
}

// Board is the page of every environment.
type Board struct {
	Frame   Frame
	Filter  Filter
	Summary Summary
	Engine  Engine
	Orphans []Orphan
	Rows    []Row
	Newer   string // the address of the newer page; "" on the first
	Older   string // the address of the older page; "" on the last
	Empty   Empty
	Begin   string  // the command that makes something happen
	Feed    []Entry // newest first
}

// Empty says which of the empty tables is shown when there are no rows.
type Empty string

// The kinds of emptiness.
const (
	EmptyNone    Empty = "none"    // there is no environment at all: how to begin
	EmptyNoMatch Empty = "nomatch" // there are some, and the filter lets none through
)

// Filter is what narrows the table, as it stands in the address.
type Filter struct {
	Query  Text
	State  string
	Active bool
	States []Choice
}

// Choice is one option of a list.
type Choice struct {
	Value, Label string
	Selected     bool
}

// Summary counts environments.
type Summary struct {
	Total  int
	States []Count
}

// Count is how many are in a state.
type Count struct {
	State string
	N     int
}

// Engine is what the sandboxes run on.
type Engine struct {
	Reachable bool
	Label     string // "docker 20.10.24"
	Isolation string
	Caution   string // what its isolation means and what to do, a sentence; "" if there is no need for one
	Error     Text
	SinceMS   int64  // of Reachable's value
	Since     string // the same as RFC 3339
	Lacks     string // the limits that this host cannot enforce, as words; "" if none
}

// Orphan is a sandbox without a record.
type Orphan struct {
	Name  Text
	Task  Text
	Image Text
	Word  string      // "stopped and kept", "running"
	Acts  *OrphanActs // nil: who asks may not
}

// OrphanActs is what an operator can do about an orphan.
type OrphanActs struct {
	CSRF     string
	Href     string
	CanAdopt bool // it is stopped
}

// Moment is an instant, drawn as the time since or until it.
type Moment struct {
	MS   int64  // Unix milliseconds
	ISO  string // RFC 3339
	Text string // as it was when the page was made: "3 min"
}

// Row is one environment in the table, and the head of its own page.
type Row struct {
	ID         string
	Href       string
	Order      string // sorts rows, newest first, when compared as text
	Task       Text
	Name       Text // "" for the main one
	Owner      Text
	Label      string // names it in an accessible name: isolated text
	State      string
	Gone       bool
	Persistent bool
	Generation string // "3rd run"; "" for the first
	Pin        *Pin
	Clock      Clock
	Activity   Activity
	Image      Text
	Isolation  string
	Weak       bool   // nothing stands between it and the host
	Unenforced string // "disk is not limited"; "" if all limits hold
	Age        Moment
	Acts       *Acts // nil for a viewer
}

// Pin is a pin as shown.
type Pin struct {
	By     Text
	Reason Text
	Until  *Moment
}

// Activity is what last counted as one.
type Activity struct {
	What string
	Who  Text
	When Moment
}

// ClockKind says what a row shows in the place of its countdown.
type ClockKind string

// The kinds of clocks.
const (
	ClockRuns    ClockKind = "runs"    // a countdown
	ClockHeld    ClockKind = "held"    // something keeps it from running
	ClockPinned  ClockKind = "pinned"  // a pin does
	ClockWorking ClockKind = "working" // starting, stopping
	ClockNever   ClockKind = "never"   // nothing will happen by itself
	ClockGone    ClockKind = "gone"    // it is removed
)

// Clock is the idle countdown, or what stands in its way.
type Clock struct {
	Kind     ClockKind
	Deadline int64   // Unix milliseconds; 0: none
	Total    int64   // milliseconds of a full countdown; 0: not known
	Left     int64   // milliseconds left when the page was made
	LeftText string  // the same for people
	Act      string  // "stop", "remove", "delete files"
	Word     string  // one line: "turn 3 is open"
	More     string  // what else holds it; "" if nothing
	Next     *Moment // of a teardown that failed: when it is tried again
	Rule     Text    // why, in a sentence
	Error    Text    // of a start or a teardown that failed
}

// Acts is what an operator can do to a row, and the form token for it.
type Acts struct {
	CSRF    string
	Pinned  bool
	CanPin  bool
	CanStop bool
	WhyNot  string // why it cannot be stopped
	CanKill bool
}

// Entry is one event in the feed: a sentence.
type Entry struct {
	Seq   uint64
	Kind  string
	Tone  string // "good", "bad", "warn", "calm"
	Who   string // "reaper", "agent", "operator", "server"
	Parts []Part
	At    Moment
	Clock string // "14:03:07"
}

// Part is a piece of a sentence.
type Part struct {
	Text   string
	Theirs bool   // somebody else's words
	Href   string // where it leads; "" for plain text
}

// Env is the page of one environment.
type Env struct {
	Frame     Frame
	Row       Row
	Facts     []Fact
	Holds     []Hold
	Execs     []Exec
	ExecsWhy  string // why the commands are not known
	Feed      []Entry
	Tombstone *Tombstone
	PinForm   *PinForm // nil where nobody may pin
}

// PinForm is what the form for a pin's reason and end is filled with.
type PinForm struct {
	CSRF   string
	Reason Text
}

// Fact is one line of a definition list.
type Fact struct {
	Name  string
	Value Text
	Note  string
	Time  *Moment
}

// Hold is one thing that keeps the countdown from running.
type Hold struct {
	Word  string
	Ref   Text
	Since Moment
	Until *Moment
}

// Exec is one command.
type Exec struct {
	Name    string
	Command Text
	Word    string // "running", "left running", "ended with 0"
	Runs    bool
	Started Moment
}

// Tombstone says how an environment ended.
type Tombstone struct {
	Reason Text
	Actor  Text
	At     Moment
	Detail string // "exit code 137, out of memory"
}

// Kill is the second step of a kill: what will be lost.
type Kill struct {
	Frame   Frame
	Row     Row
	CSRF    string
	Lost    []string // sentences
	Running []Exec
	Kept    string // what stays; "" if nothing
	Purge   bool   // whether there is a choice to delete the files too
}

// SignInForm is the form for a token.
type SignInForm struct {
	Error string
	Next  string
}

// Problem is a page that says what went wrong.
type Problem struct {
	Status  int
	Title   string
	Message Text
	SignIn  bool // whether signing in as somebody else would help
}
