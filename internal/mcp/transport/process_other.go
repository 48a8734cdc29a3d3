//go:build !unix

package transport

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup returns nil, because the system has no process groups.
func ownGroup() *syscall.SysProcAttr { return nil }

// signalGroup kills the child p if sig is SIGKILL. It does not kill processes that the child has started. It ignores
// SIGTERM, which the system does not have.
func signalGroup(p *os.Process, sig syscall.Signal) {
	if sig == syscall.SIGKILL {
		_ = p.Kill()
	}
}

// awaitExit waits until the child has exited. It reaps the child, so the later Wait returns an error, which is ignored.
func awaitExit(cmd *exec.Cmd) { _ = cmd.Wait() }
