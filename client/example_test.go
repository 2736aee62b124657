package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"sandkeeper/client"
)

func dial(ctx context.Context) *client.Client {
	c, err := client.Dial(ctx, client.Options{
		URL:   "http://127.0.0.1:7333",
		Token: os.Getenv("SANDKEEPER_AGENT_TOKEN"),
		Agent: "example",
	})
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// One turn of a task: a sandbox that outlives the turn, a command in it, the end.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c := dial(ctx)
	defer c.Close()

	got, err := c.Acquire(ctx, client.AcquireRequest{Task: "t-42", Persistent: new(true), LifetimeS: 300})
	if err != nil {
		log.Fatal(err)
	}
	ran, err := c.Run(ctx, got.Env.Ref(), client.RunRequest{Command: "echo hello from $(hostname)"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s(exit %d after %v)\n", ran.Stdout, ran.ExitCode, ran.Duration)

	ended, err := c.EndTurn(ctx, "t-42", client.TurnDone)
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range ended.Decisions {
		fmt.Println(d.Name, d.Decision, "because it is", d.Reason)
	}
}

// A failure tells its kind, and what is known of it.
func ExampleError() {
	ctx := context.Background()
	c := dial(ctx)
	defer c.Close()

	_, err := c.Run(ctx, client.ByTask("t-42"), client.RunRequest{Argv: []string{"make", "test"}, TimeoutS: 600})
	switch e, _ := errors.AsType[*client.Error](err); {
	case err == nil:
	case errors.Is(err, client.KindGenerationGone):
		fmt.Println("the sandbox went:", e.Tombstone.Reason, "by", e.Tombstone.Actor)
	case errors.Is(err, client.KindEngineUnavailable):
		time.Sleep(e.RetryAfter)
	default:
		log.Fatal(err)
	}
}

// A command that has an id of the agent's own can be asked for again, by another
// process too: it never runs twice.
func ExampleClient_Run() {
	ctx := context.Background()
	c := dial(ctx)
	defer c.Close()

	ran, err := c.Run(ctx, client.ByTask("deploy"), client.RunRequest{ID: "release-7", Command: "./deploy.sh"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", ran.Stdout)
}

// What happens to the environments that a session uses is told to it.
func ExampleOptions() {
	c, err := client.Dial(context.Background(), client.Options{
		URL:   "http://127.0.0.1:7333",
		Token: os.Getenv("SANDKEEPER_AGENT_TOKEN"),
		OnEnvState: func(e client.Env) {
			fmt.Println(e.Task, "is", e.State)
		},
		OnEnvExpiring: func(x client.Expiring) {
			fmt.Println(x.Env, "goes in", x.SecondsLeft, "s unless it is used")
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
}

// Files go in and out without a shell.
func ExampleClient_WriteFile() {
	ctx := context.Background()
	c := dial(ctx)
	defer c.Close()

	env := client.ByTask("t-42")
	if _, err := c.WriteFile(ctx, env, client.FileWrite{Path: "in/data.txt", Data: []byte("42\n"), Mkdirs: true}); err != nil {
		log.Fatal(err)
	}
	data, err := c.ReadFile(ctx, env, "in/data.txt", 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", data)
}

// A project goes into the sandbox as a folder, and what was made of it comes back.
func ExampleClient_UploadDir() {
	ctx := context.Background()
	c := dial(ctx)
	defer c.Close()

	env := client.ByTask("t-42")
	if _, err := c.UploadDir(ctx, env, "project", os.DirFS("project")); err != nil {
		log.Fatal(err)
	}
	out, err := os.Create("result.bin")
	if err != nil {
		log.Fatal(err)
	}
	defer out.Close()
	if _, err := c.Download(ctx, env, "project/result.bin", out); err != nil {
		log.Fatal(err)
	}
}
