//go:build !linux && !darwin && !freebsd

package embedded

import (
	"math"
	"os"
)

// fileLock is an open file without a lock, because the standard library has file locks only on Unix.
type fileLock struct{ *os.File }

// lockFile opens a file, and creates it if necessary. It does not detect that another process has the file open.
func lockFile(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	return &fileLock{f}, err
}

// freeBytes returns a very large number, because the standard library cannot read the free space on this platform. A
// full disk is then noticed only when a write fails.
func freeBytes(string) (int64, error) { return math.MaxInt64 / 4, nil }
