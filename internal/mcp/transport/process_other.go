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

// signalGroup kills the child p if sig is killSignal. It does not kill processes that the child has started. It
// ignores terminateSignal, which the system does not have.
func signalGroup(p *os.Process, sig syscall.Signal) {
	if sig == killSignal {
		_ = p.Kill()
	}
}

// awaitExit waits until the child has exited. It reaps the child, so the later Wait in startAndWait fails, which
// ignores the error.
func awaitExit(cmd *exec.Cmd) { _ = cmd.Wait() }
