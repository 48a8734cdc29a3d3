//go:build unix

package main

import (
	"math"
	"syscall"
)

// maxOpenFiles returns the number of files that the process may have open, or 0 if that is unknown. At the start of the
// process, package os has raised the limit to the maximum that the process may set.
func maxOpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
