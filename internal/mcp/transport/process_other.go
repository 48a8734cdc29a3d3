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

// ownGroup returns nil, because the system has no process groups.
func ownGroup() *syscall.SysProcAttr { return nil }

// signalGroup kills the child if sig is killSignal. It does not kill what the child has started, and ignores
// terminateSignal, which the system does not have.
func signalGroup(p *os.Process, sig syscall.Signal) {
	if sig == killSignal {
		_ = p.Kill()
	}
}

// awaitExit returns when the child has exited. It reaps the child, so the Wait of startAndWait fails, which ignores
// the error.
func awaitExit(cmd *exec.Cmd) { _ = cmd.Wait() }
