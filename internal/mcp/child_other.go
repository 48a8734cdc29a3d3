//go:build !unix

package mcp

import (
	"os"
	"os/exec"
	"syscall"
)

const (
	terminate = syscall.SIGTERM
	kill      = syscall.SIGKILL
)

// ownGroup is nothing: there are no process groups here.
func ownGroup() *syscall.SysProcAttr { return nil }

// signalGroup ends the child, and not what the child has started. There is no signal to
// ask it to end.
func signalGroup(p *os.Process, sig syscall.Signal) {
	if sig == kill {
		_ = p.Kill()
	}
}

// awaitExit returns when the child has exited. It is reaped, and another Wait is an
// error that nobody minds.
func awaitExit(cmd *exec.Cmd) { _ = cmd.Wait() }
