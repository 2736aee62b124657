package agentapi

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"sandkeeper/internal/contracttest"
	"sandkeeper/internal/control"
)

// Each method is in the contract with the params that the server knows, and the
// contract has no other.
func TestTheContractHasEveryMethodAndItsParams(t *testing.T) {
	for name, m := range methods {
		if got, want := contracttest.Members(name+".params"), slices.Sorted(slices.Values(m.fields)); !slices.Equal(got, want) {
			t.Errorf("%s takes %q, by the contract %q", name, want, got)
		}
	}
	if got, want := contracttest.Members("hello.params"), slices.Sorted(slices.Values(helloFields)); !slices.Equal(got, want) {
		t.Errorf("hello takes %q, by the contract %q", want, got)
	}
	for _, name := range contracttest.Names() {
		if method, ok := strings.CutSuffix(name, ".request"); ok && !slices.Contains(features(), method) {
			t.Errorf("the contract has %s, which the server does not offer", method)
		}
	}
	for _, name := range features() {
		if !contracttest.Has(name+".request") || !contracttest.Has(name+".response") {
			t.Errorf("the contract has no messages of %s", name)
		}
	}
}

// What the server writes has the members of the contract, to the last of them.
func TestTheContractHasTheMembersOfEveryMessage(t *testing.T) {
	shapes := map[string]any{
		"hello.result":       helloResult{},
		"env.acquire.result": control.Acquired{}, "env.get.result": envResult{}, "env.list.result": envsResult{},
		"env.touch.result": envResult{}, "env.release.result": envResult{},
		"turn.begin.result": turnResult{}, "turn.end.result": control.TurnEnd{},
		"exec.run.result": runResult{}, "exec.start.result": startResult{}, "exec.attach.result": attachResult{},
		"exec.wait.result": waitResult{}, "exec.list.result": execsResult{}, "exec.signal.result": signalResult{},
		"exec.resize.result": empty{}, "exec.close_stdin.result": empty{},
		"file.read.result": readResult{}, "file.write.result": writeResult{}, "file.list.result": filesResult{},
		"file.stat.result": fileEntry{}, "file.remove.result": empty{}, "file.mkdir.result": empty{},
		"events.subscribe.result": subscribeResult{},

		"env.state.params": envResult{}, "env.expiring.params": expiringParams{}, "server.draining.params": drainingParams{},
		"event.params": control.EventView{}, "events.reset.params": empty{}, "events.ended.params": endedParams{},
		"exec.exit.params": exitParams{}, "exec.gap.params": gapParams{}, "exec.detached.params": detachedParams{},
		"error": wireError{},
	}
	for name, v := range shapes {
		if err := contracttest.Shape(name, v); err != nil {
			t.Error(err)
		}
	}
	for _, name := range contracttest.Names() {
		_, known := shapes[name]
		if notification, ok := strings.CutSuffix(name, ".notification"); ok {
			_, known = shapes[notification+".params"]
		} else if !strings.HasSuffix(name, ".result") {
			continue
		}
		if !known {
			t.Errorf("nothing is compared with %s", name)
		}
	}
}

// Every kind of error that the server has is in the contract.
func TestTheContractHasEveryError(t *testing.T) {
	for _, e := range []*wireError{
		parseError(), invalidRequest("m"), failure(codeUnknownMethod, "unknown_method", "m"), invalidParam("f", "m"),
		failure(codeHelloRequired, "hello_required", "m"), busy("m"),
	} {
		checkError(t, e)
	}
	for kind := range codes {
		checkError(t, wireErrorOf(control.Errorf(kind, "m")))
	}
}

func checkError(t *testing.T, e *wireError) {
	t.Helper()
	if err := contracttest.Check("error", marshal(t, e)); err != nil {
		t.Error(err)
	}
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
