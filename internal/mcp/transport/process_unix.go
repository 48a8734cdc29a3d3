//go:build unix && !linux

package transport

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup returns attributes that make a child the leader of its own process group. Without Linux's Pdeathsig, a
// child that ignores the end of its stdin lives on if answerd dies of SIGKILL.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalGroup sends sig to the process group that the child p leads.
func signalGroup(p *os.Process, sig syscall.Signal) { _ = syscall.Kill(-p.Pid, sig) }

// awaitExit waits until the child has exited. It reaps the child, so the later Wait returns an error, which is ignored.
func awaitExit(cmd *exec.Cmd) { _ = cmd.Wait() }
