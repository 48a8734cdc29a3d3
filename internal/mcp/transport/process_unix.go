//go:build unix && !linux

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

// ownGroup makes a child the leader of a process group of its own. Without Linux's Pdeathsig, a child
// that ignores the end of its input survives our SIGKILL.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalGroup signals the child and its group.
func signalGroup(p *os.Process, sig syscall.Signal) { _ = syscall.Kill(-p.Pid, sig) }

// awaitExit returns when the child has exited. It reaps the child, and the error of another Wait is
// ignored.
func awaitExit(cmd *exec.Cmd) { _ = cmd.Wait() }
