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

// ownGroup returns the attributes that make a child the leader of its own process group. Without Linux's Pdeathsig, a
// child that ignores the end of its stdin lives on when answerd dies of SIGKILL.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalGroup sends sig to the process group of the child p.
func signalGroup(p *os.Process, sig syscall.Signal) { _ = syscall.Kill(-p.Pid, sig) }

// awaitExit returns when the child has exited. It reaps the child, so the Wait of startAndWait fails, which ignores
// the error.
func awaitExit(cmd *exec.Cmd) { _ = cmd.Wait() }
