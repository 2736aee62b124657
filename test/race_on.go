//go:build race

package test

// The server is built with the race detector where the tests are.
const raceDetector = true

// Slowdown is how much slower a server is, about, with the race detector.
const Slowdown = 5
