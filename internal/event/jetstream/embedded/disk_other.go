//go:build !linux && !darwin && !freebsd

package embedded

import (
	"math"
	"os"
)

// fileLock is an open file, which is not locked: the standard library has file locks on Unix only.
type fileLock struct{ *os.File }

// lockFile opens a file, which it makes if it is missing. It does not detect another process that has the file open.
func lockFile(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	return &fileLock{f}, err
}

// freeBytes returns a very large number, because the standard library cannot read the free space on this platform. That
// the disk is full then only shows when a write fails.
func freeBytes(string) (int64, error) { return math.MaxInt64 / 4, nil }
