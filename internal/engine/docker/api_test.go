package docker

import (
	"sync"
	"testing"
)

// Calls that find the engine away read the version that a later one settles:
// for the race detector to see.
func TestAPIVersionIsSettledOnceTheEngineAnswers(t *testing.T) {
	f := newFake(t)
	e := f.engine(t, nil)
	calls := func() {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { e.Info(t.Context()) })
		}
		wg.Wait()
	}
	var away sync.WaitGroup
	away.Go(calls)
	f.listen(t)
	calls()
	away.Wait()
	if v := e.api.client(t.Context()).ClientVersion(); v != "1.41" {
		t.Errorf("it speaks %s to an engine of 1.41", v)
	}
	if e.api.settled.Load() == nil {
		t.Error("it is not settled")
	}
}
