//go:build screenshot

package test_test

import (
	"context"
	"os"
	"testing"

	"github.com/chromedp/chromedp"

	"sandkeeper/client"
	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// TestScreenshot makes the README's picture from the real page, with agents at
// work: make screenshot.
func TestScreenshot(t *testing.T) {
	const image = "agent-tools:12" // as a person would name it
	docker := test.OpenDocker(t)
	docker.Run(t, "tag", docker.Image, image)
	t.Cleanup(func() { docker.Run(t, "image", "rm", image) })
	s := test.Engine("docker").Start(t, "--image", image)
	agent := func(owner, name string) *test.Agent {
		return s.AgentBy(t, name, s.CLI(t, "token", "create", "--role", "agent", "--owner", owner))
	}
	hermes, ada := agent("research", "hermes"), agent("platform", "ada")

	resting := hermes.Acquire(client.AcquireRequest{Task: "nightly-report", Persistent: new(true), LifetimeS: 1})
	hermes.Sh(resting.Env.ID, "date > report")
	hermes.EndTurn("nightly-report")
	s.Events().Wait(t, "one is dormant", test.Is(control.ReaperStopped, resting.Env.ID))

	for _, task := range []string{"refactor-billing", "release-notes"} {
		env := hermes.Acquire(client.AcquireRequest{Task: task, Persistent: new(true)})
		hermes.Sh(env.Env.ID, "echo ready > note")
		hermes.EndTurn(task)
	}
	pinned := ada.Acquire(client.AcquireRequest{Task: "flaky-test-hunt", Persistent: new(true)})
	ada.EndTurn("flaky-test-hunt")
	s.Act(t, pinned.Env.ID, "pin", map[string]string{"reason": "keep for the post-mortem"})

	scratch := ada.Acquire(client.AcquireRequest{Task: "scratch"})
	ada.EndTurn("scratch")
	s.Events().Wait(t, "the ephemeral one is removed", test.Is(control.EnvRemoved, scratch.Env.ID))

	ctx, cancel := context.WithCancel(t.Context())
	busy := ada.Acquire(client.AcquireRequest{Task: "train-small-model"})
	ran := make(chan error, 1)
	go func() {
		_, err := ada.Client.Run(ctx, busy.Env.Ref(), client.RunRequest{Argv: []string{"sleep", "600"}})
		ran <- err
	}()
	t.Cleanup(func() { cancel(); <-ran })

	tab := test.OpenTab(t)
	tab.Do(chromedp.EmulateViewport(1440, 620, chromedp.EmulateScale(2)))
	tab.SignIn(s)
	tab.Wait("the last are there", test.Element(test.Row(busy.Env.ID))+" && "+test.Element(test.Row(pinned.Env.ID)))
	png := tab.Picture()
	if err := os.WriteFile("../docs/screenshot.png", png, 0o644); err != nil {
		t.Fatal(err)
	}
}
