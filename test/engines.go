package test

import (
	"os"
	"testing"
)

// On is an engine that a test runs on.
type On struct {
	Name string // "docker" or "local"
	Tool string // a path outside of the workspace that sandboxes may write to, and that is kept
	User string // another user in sandboxes, whom root there may become; "": nobody else is there
}

// engines are those that tests run on, where the machine has them.
var engines = []On{{"docker", "/usr/bin/tool", "user"}, local()}

// local knows that an ordinary user's sandboxes have a read-only root file system,
// and no other user.
func local() On {
	if os.Geteuid() == 0 {
		return On{"local", "/usr/bin/tool", "nobody"}
	}
	return On{"local", "/root/tool", ""}
}

// Why a test is of one engine alone.
const (
	images    = "the local engine has no images"
	held      = "between the server and the local engine there is no socket at which a call could be held, refused or cut; TestStormOfKills kills servers anywhere in a call"
	oneFolder = "a local sandbox's files are in one directory: who removes it removes them all"
)

// alone has the tests that run on one engine, or on none, and why. Every other one
// runs on each engine; a test of this table holds the others to that.
var alone = map[string]struct{ on, why string }{
	"TestImageWithoutAShell":               {"docker", images},
	"TestImageWithAUser":                   {"docker", images},
	"TestImageWithAnEntrypointOfItsOwn":    {"docker", images},
	"TestUnknownImageLeavesNothing":        {"docker", images},
	"TestAnImageIsUnavailableOnLocal":      {"local", images},
	"TestCrashInTheMiddleOfACreate":        {"docker", held},
	"TestCrashInTheMiddleOfATeardown":      {"docker", held},
	"TestCrashInTheMiddleOfAResume":        {"docker", held},
	"TestFailedTeardownIsTriedUntilAbsent": {"docker", held},
	"TestHungTeardownDelaysNoOther":        {"docker", held},
	"TestEngineThatCannotBeReached":        {"docker", held},
	"TestServerThatStartsWithoutItsEngine": {"docker", held},
	"TestServerThatRestartsWithoutItsEngine": {
		"docker", held,
	},
	"TestEngineStoppedAndStarted":              {"docker", "the local engine is part of the server: it does not stop alone"},
	"TestContainerRemovedBehindOurBack":        {"docker", oneFolder},
	"TestStartedBehindOurBack":                 {"docker", "nothing but a server starts a local sandbox"},
	"TestServerWithoutRootsRightsSaysWhatToDo": {"local", "docker needs none of them"},
	"TestReadmesFirstTurn":                     {"local", "a newcomer without Docker plays it"},
	"TestScreenshot":                           {"docker", "its picture has the name of an image"},
	"TestPythonClient":                         {"local", "it tests a client, of which each run makes a wheel and an environment"},
	"TestPythonClientIsTyped":                  {"none", "it reads the client's source"},
	"TestEveryTestRunsOnEachEngine":            {"none", "it reads the tests"},
}

// Engine returns the engine of that name.
func Engine(name string) On {
	for _, on := range engines {
		if on.Name == name {
			return on
		}
	}
	panic("there is no engine " + name)
}

// Each runs a test on each engine, but for what the table has on one alone. They run
// at once, and beside other tests.
func Each(t *testing.T, f func(t *testing.T, on On)) {
	t.Parallel()
	for _, on := range engines {
		if one, ok := alone[t.Name()]; ok && one.on != on.Name {
			continue
		}
		t.Run(on.Name, func(t *testing.T) {
			t.Parallel()
			f(t, on)
		})
	}
}
