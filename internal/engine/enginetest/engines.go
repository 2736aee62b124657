package enginetest

// Engines are all there are, by the names of their packages and of --engine. Each
// is held against the suite by the TestConformance of its package, where alone its
// harness can be made; a test here finds an engine that is not.
var Engines = []string{"docker", "local"}
