//go:build !race

package test

// The server is built with the race detector where the tests are.
const raceDetector = false
