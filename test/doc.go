// Package test has the end-to-end tests, and what they and the benchmarks
// stand on: the real binary as a process of its own, on a free port, with fresh data and
// an instance of its own, against a real engine.
//
// A test is a function of an engine, and runs on each; a table (alone) has
// those that one engine alone can run, and why:
//
//	func TestMain(m *testing.M) { test.Main(m) }
//
//	func TestTurns(t *testing.T) { test.Each(t, turns) }
//
//	func turns(t *testing.T, on test.On) {
//
// In it:
//
//	s := on.Start(t, "--lifetime", "2s")        // stopped, pruned and verified at the test's end
//	agent := s.Agent(t, "hermes")               // the public client, connected
//	env := s.Env(t, id)                         // as operators see it
//	s.Events().Wait(t, "it is dormant", test.Is("env.dormant", id))
//	s.Kill(t)                                   // kill -9
//	s.Restart(t)                                // on the same data
//
//	tab := test.OpenTab(t)                     // of a real browser
//	tab.SignIn(s)
//	tab.Sees(test.Row(id), "a command runs")
//
// Nothing waits for time: tests wait for events, which the server writes in the
// transaction of what they tell. A server that ends by itself, answers a stop with
// another code than 0, has a data race, or leaves something on the engine
// that prune does not find fails the test.
//
// A missing engine, browser or tmux skips the test, or fails it where it is required: package need.
package test
