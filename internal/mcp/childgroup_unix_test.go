//go:build unix

package mcp

import (
	"syscall"
	"testing"
)

// groupID is this process's group.
func groupID() int { return syscall.Getpgrp() }

// noChildren checks that this process has no child, and no zombie.
func noChildren(t *testing.T) {
	t.Helper()
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("a child is left: %d, %v, want ECHILD", pid, err)
	}
}
