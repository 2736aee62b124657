package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"
)

// The arguments by which the guest's binary becomes a launcher, a builder, and
// what the builder becomes.
const (
	Arg       = "launch"
	BuildArg  = "build"
	InsideArg = "inside"
)

// Variable holds the Kind in the launcher's environment.
const Variable = "SANDKEEPER_LAUNCH"

// The files that the launcher is started with, beside the usual ones.
const (
	StatusFile = 3 // the launcher's answer, a Status
	PlanFile   = 4 // the Plan, a line of JSON; the end of the file instead lets the launcher go
)

// Kind is what is decided before there is a Plan.
type Kind struct {
	Bin       string `json:"bin"`        // the directory of the guest's binary
	Stage     string `json:"stage"`      // an empty directory
	UserNS    bool   `json:"user_ns"`    // the server is not root: its user is root inside
	NoNetwork bool   `json:"no_network"` // in a network namespace of its own
}

// The names of what is in a sandbox's directory.
const (
	RecordFile   = "run.json"
	LogFile      = "log" // what launcher and PID 1 say on stderr
	WorkspaceDir = "workspace"
	HomeDir      = "home"
	RootDir      = "root"  // the root directory itself
	UpperDir     = "upper" // changes to what is the host's, a directory for each tree
	WorkDir      = "work"
	LinkDir      = "link" // the directory of the guest's socket
)

// Where things are inside a sandbox.
const (
	BinTarget  = "/.sandkeeper/bin"
	LinkTarget = "/.sandkeeper/link"
	GuestFile  = "guest" // in the directory of the binary
)

// Plan is the whole of what a sandbox is and may do.
//
// One with Hold is of nobody's sandbox: that is built, and waits for a second plan,
// which makes it somebody's. What the first has settled for good, the second must have too (Suits).
type Plan struct {
	Kind
	Hostname string `json:"hostname"`
	Dir      string `json:"dir"`      // the sandbox's directory
	Writable bool   `json:"writable"` // changes to the root file system are kept; else there can be none

	Trees  []Tree            `json:"trees"`  // what it sees of the host's files
	Masks  string            `json:"masks"`  // names what hides some of it
	Files  map[string]string `json:"files"`  // below /run, where the host's own files point there
	Tmp    int64             `json:"tmp"`    // bytes of /tmp; 0: not bounded
	Shm    int64             `json:"shm"`    // bytes of /dev/shm
	Guest  json.RawMessage   `json:"guest"`  // the guest's configuration
	Groups Groups            `json:"groups"` // control groups
	Probe  bool              `json:"probe"`  // end with 0 where the guest would begin
	Hold   bool              `json:"hold"`   // wait for another plan before it
}

// Suits says whether a sandbox that is held by another plan can become this one's:
// they differ in nothing but whose it is and in what can be set late.
func (p Plan) Suits(held Plan) bool {
	for _, q := range []*Plan{&p, &held} {
		q.Hostname, q.Dir, q.Tmp, q.Shm, q.Guest, q.Hold = "", "", 0, 0, nil, false
	}
	return reflect.DeepEqual(p, held)
}

// read takes a plan from its line.
func (p *Plan) read(line []byte) error {
	*p = Plan{}
	if err := json.Unmarshal(line, p); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	return nil
}

// rehearse reads a plan that means nothing: code that has run once need not be
// brought in when somebody waits.
func rehearse() {
	raw, err := json.Marshal(Plan{Trees: []Tree{{}}, Files: map[string]string{"": ""}, Guest: json.RawMessage("{}"), Groups: Groups{Enter: []string{""}, Stand: []string{""}}})
	if err == nil {
		var p Plan
		if err = p.read(raw); err == nil {
			p.Suits(p)
		}
	}
	if err == nil {
		_, err = json.Marshal(Status{})
	}
	if err != nil {
		panic(err) // what is ours is always readable
	}
}

// Tree is a directory of the host's, at the same path inside.
type Tree struct {
	Path string `json:"path"`
	Mask string `json:"mask"` // a directory that hides some of it; relative to the sandbox's directory, "" for none
}

// Groups are the control groups of a sandbox.
type Groups struct {
	Name   string   `json:"name"`   // of each
	Enter  []string `json:"enter"`  // directories of groups that PID 1 enters
	Stand  []string `json:"stand"`  // that the launcher enters
	Memory string   `json:"memory"` // the one that bounds memory; "" for none
	Two    bool     `json:"two"`    // version 2
}

// Run is what is known of one run of a sandbox. The launcher writes it.
type Run struct {
	Boot     string    `json:"boot"` // of the machine; a process of another boot is none
	PID      Process   `json:"pid"`
	Launcher Process   `json:"launcher"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished,omitzero"`
	ExitCode int       `json:"exit_code"`
	OOM      bool      `json:"oom"`   // it ended for want of memory
	Masks    string    `json:"masks"` // those of its plan
	Group    string    `json:"group"` // the name of its control groups; "": the sandbox's
}

// ReadRun reads a sandbox's last run; nil where it never ran.
func ReadRun(dir string) (*Run, error) {
	b, err := os.ReadFile(filepath.Join(dir, RecordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r Run
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", RecordFile, err)
	}
	return &r, nil
}

// Write replaces the record by rename, so that nobody reads half of one.
func (r *Run) Write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, RecordFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
