//go:build !unix

package transport

import (
	"os"
	"os/exec"
	"syscall"
)

const (
	terminateSignal = syscall.SIGTERM
	killSignal      = syscall.SIGKILL
)

// ownGroup returns nil: there are no process groups here.
func ownGroup() *syscall.SysProcAttr { return nil }

// signalGroup ends the child, and not what the child has started. There is not a signal that asks it
// to end.
func signalGroup(p *os.Process, sig syscall.Signal) {
	if sig == killSignal {
		_ = p.Kill()
	}
}

// awaitExit returns when the child has exited. It reaps the child, and the error of another Wait is
// ignored.
func awaitExit(cmd *exec.Cmd) { _ = cmd.Wait() }
