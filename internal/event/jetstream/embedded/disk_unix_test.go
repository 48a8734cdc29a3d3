//go:build linux || darwin || freebsd

package embedded

import (
	"path/filepath"
	"syscall"
	"testing"
)

// A child process that is being started has all files of its parent until its program runs. The log must open again at
// once although such a child has the locked file.
func TestLockFileIsFreeAlthoughAChildHasTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}

	inherited, err := syscall.Dup(int(lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	if _, err := lockFile(path); err == nil {
		t.Error("lockFile of a locked file = no error, want one")
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lockFile(path)
	if err != nil {
		t.Fatalf("lockFile after Close = %v, want no error", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
