//go:build !race

package jetstream_test

// parallelTests is large because tests wait for servers, leases and elections most of the time.
const parallelTests = 16
