package db

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sandkeeper/internal/control"
)

// crashEnv names the database that the child process of the crash test writes to.
const crashEnv = "SANDKEEPER_TEST_CRASH_DB"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeUntilKilled commits from many goroutines and prints the id of each batch once it is acknowledged.
func writeUntilKilled(path string) error {
	s, err := Open(path, Options{})
	if err != nil {
		return err
	}
	var (
		writers sync.WaitGroup
		out     sync.Mutex // one line at a time
		run     = os.Getpid()
	)
	for w := range 8 {
		writers.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%d-%d-%d", run, w, i)
				err := s.Commit(context.Background(), &control.Batch{
					Envs:   []*control.Env{env(id, id)},
					Tasks:  []control.TaskRecord{{Owner: "hermes", Task: id, Turn: 1}},
					Execs:  []control.ExecRecord{{Exec: id, Env: id, ID: "1"}},
					Events: []control.Event{event(control.EnvStarting, id), event(control.EnvReady, id)},
				})
				out.Lock()
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
				} else {
					fmt.Println(id)
				}
				out.Unlock()
			}
		})
	}
	writers.Wait()
	return nil
}

func TestWhatWasAcknowledgedSurvivesAKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	var acknowledged []string
	for round := range 6 {
		acknowledged = append(acknowledged, writeAndKill(t, path, 100+40*round)...)
		s, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		checkAfterCrash(t, s, acknowledged)
		shut(t, s)
	}
}

// writeAndKill runs a child that writes, kills it after n acknowledgements and returns all that it gave.
func writeAndKill(t *testing.T, path string, n int) (ids []string) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), crashEnv+"="+path)
	var stderr strings.Builder
	child.Stderr = &stderr
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(stdout)
	for {
		line, err := r.ReadString('\n')
		if err == io.EOF {
			break // a last line may be cut: its batch was acknowledged, though nobody heard it
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, strings.TrimSpace(line))
		if len(ids) == n {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = child.Wait()
	if len(ids) < n || stderr.Len() > 0 {
		t.Fatalf("the child ended after %d batches: %v: %s", len(ids), err, stderr.String())
	}
	return ids
}

// checkAfterCrash wants all batches that were acknowledged, each that is there in full, and a log without gaps.
func checkAfterCrash(t *testing.T, s *Store, acknowledged []string) {
	t.Helper()
	r, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	envs := map[string]bool{}
	for _, e := range r.Envs {
		envs[e.ID] = true
	}
	for _, id := range acknowledged {
		if !envs[id] {
			t.Errorf("batch %s was acknowledged and is lost", id)
		}
	}
	if len(r.Tasks) != len(envs) || len(r.Execs) != len(envs) {
		t.Errorf("%d environments, %d tasks, %d execs: a batch is there in part", len(envs), len(r.Tasks), len(r.Execs))
	}
	evs, first, last, err := s.Events(0, 1<<30, control.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if first != 1 || last != uint64(2*len(envs)) || len(evs) != 2*len(envs) {
		t.Errorf("%d events from %d to %d of %d batches", len(evs), first, last, len(envs))
	}
	for i, e := range evs {
		if e.Seq != uint64(i+1) {
			t.Fatalf("event %d has the number %d", i+1, e.Seq)
		}
		if i%2 == 1 && e.Env != evs[i-1].Env {
			t.Fatalf("the events of %s and %s are mixed", e.Env, evs[i-1].Env)
		}
	}
}
