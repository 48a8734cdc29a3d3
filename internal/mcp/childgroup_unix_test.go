//go:build unix

package mcp

import (
	"syscall"
	"testing"
)

// groupID is this process's group.
func groupID() int { return syscall.Getpgrp() }

// checkNoChildren checks that this process has no child, and no zombie.
func checkNoChildren(t *testing.T) {
	t.Helper()
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("a child is left: %d, %v, want ECHILD", pid, err)
	}
}

// checkWaitedFor checks that the child is no zombie, whatever children other tests have.
func checkWaitedFor(t *testing.T, child *childProcess) {
	t.Helper()
	if pid, err := syscall.Wait4(child.pid, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("wait for child %d: got %d, %v, want ECHILD", child.pid, pid, err)
	}
}
