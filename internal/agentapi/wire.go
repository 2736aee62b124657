package agentapi

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"sandkeeper/internal/control"
)

// response answers one request.
type response struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   *wireError      `json:"error,omitempty"`
}

// notification tells without being asked.
type notification struct {
	Version string `json:"jsonrpc"`
	Method  string `json:"method"`
	Params  any    `json:"params"`
}

func answer(id json.RawMessage, result any) response {
	return response{Version: "2.0", ID: id, Result: result}
}

func refusal(id json.RawMessage, err *wireError) response {
	return response{Version: "2.0", ID: id, Error: err}
}

func notice(method string, params any) notification {
	return notification{Version: "2.0", Method: method, Params: params}
}

type helloResult struct {
	Session    string       `json:"session"`
	Resumed    bool         `json:"resumed"`
	Server     serverInfo   `json:"server"`
	Boot       string       `json:"boot"`
	Protocol   int          `json:"protocol"`
	Features   []string     `json:"features"`
	HeartbeatS int64        `json:"heartbeat_seconds"`
	GraceS     int64        `json:"disconnect_grace_seconds"`
	Limits     helloLimits  `json:"limits"`
	Time       control.Time `json:"time"`
}

type serverInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type helloLimits struct {
	MaxFrameBytes   int64 `json:"max_frame_bytes"`
	MaxExecsPerEnv  int   `json:"max_execs_per_env"`
	StreamKeptBytes int64 `json:"stream_kept_bytes"` // of each stream of an exec
	MaxCalls        int   `json:"max_calls"`         // under way at once on a socket, that wait for a sandbox
	MaxChannels     int   `json:"max_channels"`      // open at once on a socket
	StdinWaiting    int64 `json:"stdin_bytes"`       // of a channel, that wait for their command
	FileReadBytes   int64 `json:"file_read_bytes"`   // of one file.read
	OutputBytes     int64 `json:"output_bytes"`      // of each stream in the result of exec.run
}

type envResult struct {
	Env control.View `json:"env"`
}

type envsResult struct {
	Envs []control.View `json:"envs"`
}

type turnResult struct {
	Turn   int64 `json:"turn"`
	Opened bool  `json:"opened"`
}

type runResult struct {
	Exec         string          `json:"exec"`
	ExitCode     int             `json:"exit_code"`
	Signal       string          `json:"signal,omitempty"`
	OOM          bool            `json:"oom,omitempty"`
	Stdout       *string         `json:"stdout,omitempty"`
	StdoutBase64 []byte          `json:"stdout_base64,omitempty"`
	Stderr       *string         `json:"stderr,omitempty"`
	StderrBase64 []byte          `json:"stderr_base64,omitempty"`
	Truncated    truncated       `json:"truncated"`
	TimedOut     bool            `json:"timed_out"`
	DurationMS   int64           `json:"duration_ms"`
	Cwd          string          `json:"cwd"`
	CwdLost      string          `json:"cwd_lost,omitempty"`    // the carried directory that was gone
	OutputLost   bool            `json:"output_lost,omitempty"` // the output is no longer kept
	OutputFiles  outputFiles     `json:"output_files,omitzero"` // of the sandbox, with more than the answer holds
	Left         int             `json:"left,omitempty"`        // processes that it left running
	Notice       *control.Notice `json:"notice,omitempty"`
}

type outputFiles struct {
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
}

type truncated struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

func runResultOf(r control.Ran) runResult {
	end := r.End
	res := runResult{
		Exec:        r.Exec,
		ExitCode:    end.ExitCode,
		Signal:      end.Signal,
		OOM:         end.OOM,
		Truncated:   truncated{end.OmittedOut, end.OmittedErr},
		TimedOut:    end.TimedOut,
		DurationMS:  end.Duration.Milliseconds(),
		Cwd:         end.Cwd,
		CwdLost:     end.CwdLost,
		OutputLost:  end.OutputLost,
		OutputFiles: outputFiles{end.FileOut, end.FileErr},
		Left:        end.Left,
		Notice:      r.Notice,
	}
	res.Stdout, res.StdoutBase64 = textOrBytes(end.Stdout)
	res.Stderr, res.StderrBase64 = textOrBytes(end.Stderr)
	return res
}

// textOrBytes returns output as text where it is UTF-8, else as it is.
func textOrBytes(b []byte) (*string, []byte) {
	if !utf8.Valid(b) {
		return nil, b
	}
	s := string(b)
	return &s, nil
}

type execsResult struct {
	Execs []control.ExecView `json:"execs"`
}

type startResult struct {
	Exec    string          `json:"exec"`
	Channel uint32          `json:"channel"`
	PID     int             `json:"pid"`
	Notice  *control.Notice `json:"notice,omitempty"`
}

type attachResult struct {
	Exec       string          `json:"exec"`
	Channel    uint32          `json:"channel"`
	State      string          `json:"state"`
	Skipped    control.Offsets `json:"skipped"`
	StdinTaken int64           `json:"stdin_taken"` // bytes of stdin that the exec had by then
}

// exit is the one end of an exec.
type exit struct {
	ExitCode   *int             `json:"exit_code"` // null: the environment was lost
	Signal     string           `json:"signal,omitempty"`
	OOM        bool             `json:"oom,omitempty"`
	TimedOut   bool             `json:"timed_out"`
	EnvLost    *control.LostEnv `json:"env_lost,omitempty"`
	DurationMS int64            `json:"duration_ms"`
	Cwd        string           `json:"cwd"`
	OutputLost bool             `json:"output_lost,omitempty"` // the output is no longer kept
	Left       int              `json:"left,omitempty"`        // processes that it left running
}

func exitOf(e control.ExecExit) exit {
	return exit{
		ExitCode: e.ExitCode, Signal: e.Signal, OOM: e.OOM, TimedOut: e.TimedOut, EnvLost: e.EnvLost,
		DurationMS: e.Duration.Milliseconds(), Cwd: e.Cwd, OutputLost: e.OutputLost, Left: e.Left,
	}
}

type waitResult struct {
	Exec  string `json:"exec"`
	State string `json:"state"` // "running", "exited"
	*exit
}

type signalResult struct {
	Survivors int `json:"survivors"`
}

type exitParams struct {
	Exec    string `json:"exec"`
	Channel uint32 `json:"channel"`
	exit
}

type gapParams struct {
	Exec    string          `json:"exec"`
	Channel uint32          `json:"channel"`
	Skipped control.Offsets `json:"skipped"`
}

type detachedParams struct {
	Exec    string     `json:"exec"`
	Channel uint32     `json:"channel"`
	Error   *wireError `json:"error"`
}

type subscribeResult struct {
	Last uint64 `json:"last"`
}

type readResult struct {
	Data  []byte       `json:"data"`
	Size  int64        `json:"size"`
	Mode  uint32       `json:"mode"`
	MTime control.Time `json:"mtime"`
	EOF   bool         `json:"eof"`
}

type writeResult struct {
	Size int64 `json:"size"`
}

type fileEntry struct {
	Name  string       `json:"name"`
	Type  string       `json:"type"`
	Size  int64        `json:"size"`
	Mode  uint32       `json:"mode"` // permission bits
	MTime control.Time `json:"mtime"`
}

type filesResult struct {
	Entries []fileEntry `json:"entries"`
}

func fileEntryOf(f control.FileInfo) fileEntry {
	return fileEntry{Name: f.Name, Type: f.Type, Size: f.Size, Mode: modeBits(f.Mode), MTime: control.At(f.MTime)}
}

type empty struct{}

type expiringParams struct {
	Env         string       `json:"env"`
	Deadline    control.Time `json:"deadline"`
	SecondsLeft int64        `json:"seconds_left"`
}

type drainingParams struct {
	SecondsLeft int64 `json:"seconds_left"`
}

// seconds rounds up to whole seconds.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

type endedParams struct {
	Error *wireError `json:"error"`
}
