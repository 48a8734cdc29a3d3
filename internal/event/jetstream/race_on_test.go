//go:build race

package jetstream_test

// parallelTests is small because the race detector makes the servers of the tests so slow that more of them would not
// answer each other within the 4 s after which a NATS cluster elects a new leader.
const parallelTests = 4
