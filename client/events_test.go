package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func event(seq int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"event","params":{"seq":%d,"time":"2026-03-01T12:00:00.000Z","kind":"env.touched","env":"e1","owner":"o","task":null,"name":null,"actor":"server","reason":"r","data":{"a":1}}}`, seq)
}

// subscribed answers the subscription that must come, and returns what it asks to come after.
func (p *played) subscribed(last int) string {
	q := p.next()
	if q.Method != "events.subscribe" {
		p.t.Errorf("%s came", q.Method)
	}
	p.answer(q, fmt.Sprintf(`{"last":%d}`, last))
	return fmt.Sprint(q.Params["after"])
}

func next(t *testing.T, e *Events, want uint64) {
	t.Helper()
	got, err := e.Next(t.Context())
	if err != nil || got.Seq != want {
		t.Fatalf("event %d, %v; want %d", got.Seq, err, want)
	}
}

func TestEventsAreTakenUpAgainAfterALoss(t *testing.T) {
	s := play(t)
	c := s.dial()
	p := <-s.conns
	p.busy.Go(func() {
		if after := p.subscribed(4); after != "<nil>" {
			t.Errorf("the first asks for what comes after %s", after)
		}
		p.write(event(5))
		p.write(event(6))
	})
	e, err := c.Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Next(t.Context())
	if err != nil || got.Seq != 5 || got.Kind != "env.touched" || got.Env != "e1" || got.Task != "" || string(got.Data) != `{"a":1}` || got.Time.IsZero() {
		t.Fatalf("%+v, %v", got, err)
	}
	next(t, e, 6)
	p.drop()
	p = <-s.conns
	defer p.drop()
	p.busy.Go(func() {
		if after := p.subscribed(9); after != "6" {
			t.Errorf("after the loss it asks for what comes after %s", after)
		}
		p.write(event(7))
		p.write(`{"jsonrpc":"2.0","method":"events.reset","params":{}}`)
		p.write(event(20))
		p.write(`{"jsonrpc":"2.0","method":"events.ended","params":{"error":{"code":-32603,"message":"m","data":{"kind":"internal"}}}}`)
		if after := p.subscribed(20); after != "20" {
			t.Errorf("after the server's error it asks for what comes after %s", after)
		}
		p.write(event(21))
	})
	next(t, e, 7)
	if _, err := e.Next(t.Context()); !errors.Is(err, ErrReset) {
		t.Errorf("of a reset: %v", err)
	}
	next(t, e, 20)
	if _, err := e.Next(t.Context()); !errors.Is(err, KindInternal) {
		t.Errorf("of the server's error: %v", err)
	}
	next(t, e, 21)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

func TestEventsThatAreNotReadAreBounded(t *testing.T) {
	s := play(t)
	c := s.dial()
	p := <-s.conns
	defer p.drop()
	const all = 2*mostEvents + 5
	p.busy.Go(func() {
		p.subscribed(0)
		for seq := 1; seq <= all; seq++ {
			p.write(event(seq))
		}
		p.answer(p.next(), `{"envs":[]}`)
		if after := p.subscribed(all); after != fmt.Sprint(mostEvents) {
			t.Errorf("it asks for what comes after %s, want %d", after, mostEvents)
		}
		for seq := range mostEvents {
			p.write(event(mostEvents + 1 + seq))
		}
	})
	e, err := c.Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Envs(t.Context(), ""); err != nil { // behind all of them
		t.Fatal(err)
	}
	e.mu.Lock()
	if len(e.queue) != mostEvents {
		t.Errorf("%d events wait", len(e.queue))
	}
	e.mu.Unlock()
	for seq := range uint64(2 * mostEvents) {
		next(t, e, seq+1)
	}
}

func TestOneSubscriptionAtATime(t *testing.T) {
	s := play(t)
	c := s.dial()
	p := <-s.conns
	defer p.drop()
	p.busy.Go(func() {
		p.subscribed(1)
		if after := p.subscribed(1); after != "0" {
			t.Errorf("the second asks for what comes after %s", after)
		}
		p.write(event(1))
	})
	first, err := c.Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Subscribe(t.Context(), new(uint64))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Next(t.Context()); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the first: %v", err)
	}
	next(t, second, 1)
	second.Close()
	if _, err := second.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("once closed: %v", err)
	}
}

func TestAChannelThatBrokeIsJoinedAnew(t *testing.T) {
	s := play(t)
	c := s.dial()
	p := <-s.conns
	defer p.drop()
	p.busy.Go(func() {
		p.answer(p.next(), `{"exec":"x1","channel":1,"pid":7}`)
		p.write(`{"jsonrpc":"2.0","method":"exec.detached","params":{"exec":"x1","channel":1,"error":{"code":-32603,"message":"m","data":{"kind":"internal"}}}}`)
		q := p.next()
		if q.Method != "exec.attach" {
			t.Errorf("%s came", q.Method)
		}
		p.answer(q, `{"exec":"x1","channel":2,"state":"running","skipped":{"stdout":0,"stderr":0},"stdin_taken":0}`)
		p.write(`{"jsonrpc":"2.0","method":"exec.exit","params":{"exec":"x1","channel":2,"exit_code":3,"timed_out":false,"duration_ms":1,"cwd":"/"}}`)
	})
	x, err := c.Start(t.Context(), ByID("e1"), StartRequest{Command: "make"})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := x.Wait(t.Context()); err != nil || e.ExitCode != 3 {
		t.Errorf("%+v, %v", e, err)
	}
}
