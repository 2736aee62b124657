package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Acquire asks for an environment and waits until it is ready. It opens a turn
// where the task has none open.
func (c *Client) Acquire(ctx context.Context, r AcquireRequest) (*Acquired, error) {
	var got Acquired
	if err := c.do(ctx, "env.acquire", true, r, &got); err != nil {
		return nil, err
	}
	if t := got.Env.Turn; t != nil {
		c.sawTurn(got.Env.Task, t.Number)
	}
	return &got, nil
}

type envResult struct {
	Env *Env `json:"env"`
}

func (c *Client) env(ctx context.Context, method string, repeat bool, params any) (*Env, error) {
	var got envResult
	if err := c.do(ctx, method, repeat, params, &got); err != nil {
		return nil, err
	}
	return got.Env, nil
}

// Env reads an environment. Reading keeps no reaper away.
func (c *Client) Env(ctx context.Context, r Ref) (*Env, error) {
	return c.env(ctx, "env.get", true, r)
}

// Envs lists the environments of a task, or all of the owner's where task is empty.
func (c *Client) Envs(ctx context.Context, task string) ([]Env, error) {
	var got struct {
		Envs []Env `json:"envs"`
	}
	err := c.do(ctx, "env.list", true, struct {
		Task string `json:"task,omitempty"`
	}{task}, &got)
	return got.Envs, err
}

// Touch counts as activity: an idle countdown begins anew.
func (c *Client) Touch(ctx context.Context, r Ref) (*Env, error) {
	return c.env(ctx, "env.touch", true, r)
}

// Release tears an environment down now. The files of a persistent one stay,
// unless purge is set. Errors: KindConflict where it is pinned.
func (c *Client) Release(ctx context.Context, r Ref, purge bool) (*Env, error) {
	return c.env(ctx, "env.release", false, struct {
		Ref
		Purge bool `json:"purge,omitempty"`
	}{r, purge})
}

// BeginTurn opens a turn of a task, or joins the one that is open.
func (c *Client) BeginTurn(ctx context.Context, task string) (turn int64, opened bool, err error) {
	var got struct {
		Turn   int64 `json:"turn"`
		Opened bool  `json:"opened"`
	}
	err = c.do(ctx, "turn.begin", true, struct {
		Task string `json:"task"`
	}{task}, &got)
	if err == nil {
		c.sawTurn(task, got.Turn)
	}
	return got.Turn, got.Opened, err
}

// Outcome is how a turn went, for operators; it changes no decision.
type Outcome string

// The outcomes of a turn.
const (
	TurnDone      Outcome = "done"
	TurnFailed    Outcome = "failed"
	TurnCancelled Outcome = "cancelled"
)

// EndTurn ends the latest turn of a task that this client saw: environments
// that are not persistent go, the others are kept and begin their countdown. It
// answers once that is decided; the teardown goes on behind it.
func (c *Client) EndTurn(ctx context.Context, task string, o Outcome) (*TurnEnded, error) {
	return c.EndTurnNumber(ctx, task, c.latestTurn(task), o)
}

// EndTurnNumber is EndTurn of the turn with that number; 0 is whichever is open.
func (c *Client) EndTurnNumber(ctx context.Context, task string, turn int64, o Outcome) (*TurnEnded, error) {
	var got TurnEnded
	err := c.do(ctx, "turn.end", turn != 0, struct {
		Task    string  `json:"task"`
		Turn    int64   `json:"turn,omitempty"`
		Outcome Outcome `json:"outcome,omitempty"`
	}{task, turn, o}, &got)
	if err != nil {
		return nil, err
	}
	return &got, nil
}

// Run runs a command to its end. It never runs twice, however often the
// connection drops meanwhile. A dormant environment is brought back for it.
// Errors: KindGenerationGone where the environment goes before the command's end.
func (c *Client) Run(ctx context.Context, r Ref, run RunRequest) (*RunResult, error) {
	if run.ID == "" {
		run.ID = rand.Text()
	}
	var got RunResult
	err := c.do(ctx, "exec.run", true, struct {
		Ref
		RunRequest
	}{r, run}, &got)
	if err != nil {
		return nil, err
	}
	return &got, nil
}

// Execs lists the commands of an environment that run or have lately ended.
func (c *Client) Execs(ctx context.Context, r Ref) ([]Exec, error) {
	var got struct {
		Execs []Exec `json:"execs"`
	}
	err := c.do(ctx, "exec.list", true, r, &got)
	return got.Execs, err
}

// WaitExec waits for the end of a command without its streams: at most for
// timeout, rounded up to seconds, where that is positive. The exit is nil while
// it runs.
func (c *Client) WaitExec(ctx context.Context, exec string, timeout time.Duration) (*Exit, error) {
	var got json.RawMessage
	err := c.do(ctx, "exec.wait", true, struct {
		Exec     string `json:"exec"`
		TimeoutS int64  `json:"timeout_seconds,omitempty"`
	}{exec, int64((timeout + time.Second - 1) / time.Second)}, &got)
	if err != nil {
		return nil, err
	}
	var state struct {
		State string `json:"state"`
	}
	var e Exit
	if err := errors.Join(json.Unmarshal(got, &state), json.Unmarshal(got, &e)); err != nil {
		return nil, fmt.Errorf("client: result of exec.wait: %w", err)
	}
	if state.State != "exited" {
		return nil, nil
	}
	return &e, nil
}

// Signal sends a signal ("TERM", "KILL", …) to a command, with tree to all that
// it started, and returns how many of these still live: none after KILL of a tree.
func (c *Client) Signal(ctx context.Context, exec, signal string, tree bool) (survivors int, err error) {
	var got struct {
		Survivors int `json:"survivors"`
	}
	err = c.do(ctx, "exec.signal", false, struct {
		Exec   string `json:"exec"`
		Signal string `json:"signal"`
		Tree   bool   `json:"tree"`
	}{exec, signal, tree}, &got)
	return got.Survivors, err
}

// Resize sets the size of a command's terminal.
func (c *Client) Resize(ctx context.Context, exec string, t TTY) error {
	return c.do(ctx, "exec.resize", true, struct {
		Exec string `json:"exec"`
		TTY
	}{exec, t}, nil)
}

// CloseStdin ends a command's input, whoever gives it.
func (c *Client) CloseStdin(ctx context.Context, exec string) error {
	return c.do(ctx, "exec.close_stdin", true, struct {
		Exec string `json:"exec"`
	}{exec}, nil)
}

// onPath is what most file calls ask.
type onPath struct {
	Ref
	Path      string `json:"path"`
	Recursive bool   `json:"recursive,omitempty"`
}

// ReadChunk reads a part of a file; length 0 is as much as one call brings.
func (c *Client) ReadChunk(ctx context.Context, r Ref, path string, offset, length int64) (*Chunk, error) {
	var got Chunk
	err := c.do(ctx, "file.read", true, struct {
		onPath
		Offset int64 `json:"offset,omitempty"`
		Length int64 `json:"length,omitempty"`
	}{onPath{Ref: r, Path: path}, offset, length}, &got)
	if err != nil {
		return nil, err
	}
	return &got, nil
}

// ErrFileTooBig says that a file has more bytes than ReadFile was to read.
var ErrFileTooBig = errors.New("client: the file is larger than was to be read")

// ReadFile reads a whole file of at most limit bytes.
func (c *Client) ReadFile(ctx context.Context, r Ref, path string, limit int64) ([]byte, error) {
	var data []byte
	for {
		chunk, err := c.ReadChunk(ctx, r, path, int64(len(data)), 0)
		if err != nil {
			return nil, err
		}
		if int64(len(data)+len(chunk.Data)) > limit {
			return nil, ErrFileTooBig
		}
		data = slices.Concat(data, chunk.Data)
		if chunk.EOF || len(chunk.Data) == 0 {
			return data, nil
		}
	}
}

// WriteFile writes a file, or appends to one, and returns its size. An append
// is not repeated after a loss of the connection.
func (c *Client) WriteFile(ctx context.Context, r Ref, w FileWrite) (size int64, err error) {
	if w.Data == nil {
		w.Data = []byte{}
	}
	var got struct {
		Size int64 `json:"size"`
	}
	err = c.do(ctx, "file.write", !w.Append, struct {
		Ref
		FileWrite
	}{r, w}, &got)
	return got.Size, err
}

// ListFiles lists a directory.
func (c *Client) ListFiles(ctx context.Context, r Ref, path string) ([]File, error) {
	var got struct {
		Entries []File `json:"entries"`
	}
	err := c.do(ctx, "file.list", true, onPath{Ref: r, Path: path}, &got)
	return got.Entries, err
}

// Stat describes a file.
func (c *Client) Stat(ctx context.Context, r Ref, path string) (*File, error) {
	var got File
	if err := c.do(ctx, "file.stat", true, onPath{Ref: r, Path: path}, &got); err != nil {
		return nil, err
	}
	return &got, nil
}

// Remove removes a file, or with recursive a directory and all in it.
func (c *Client) Remove(ctx context.Context, r Ref, path string, recursive bool) error {
	return c.do(ctx, "file.remove", false, onPath{r, path, recursive}, nil)
}

// Mkdir makes a directory, with recursive its parents too.
func (c *Client) Mkdir(ctx context.Context, r Ref, path string, recursive bool) error {
	return c.do(ctx, "file.mkdir", recursive, onPath{r, path, recursive}, nil)
}
