//go:build linux || darwin || freebsd

package embedded

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// fileLock is a locked file. The kernel releases the lock when the process ends, even by kill -9.
type fileLock struct{ *os.File }

// Close releases the lock and closes the file. Closing the file is not enough: while a child process is being started,
// it has a copy of the descriptor and thus of the lock, until it executes its program.
func (l *fileLock) Close() error {
	return errors.Join(syscall.Flock(int(l.Fd()), syscall.LOCK_UN), l.File.Close())
}

// lockFile locks a file, and creates it if necessary. It does not wait: it returns an error if another process holds
// the lock.
func lockFile(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.New("another process uses it")
		}
		return nil, err
	}
	return &fileLock{f}, nil
}

// freeBytes returns how many bytes this process may still write to the file system of dir.
func freeBytes(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("read the free space of %s: %w", dir, err)
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}
