//go:build unix

package main

import (
	"math"
	"syscall"
)

// maxOpenFiles returns how many files the process may have open, or 0 if that is unknown. Package os has already raised
// the soft limit to the highest value that the process may set.
func maxOpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
