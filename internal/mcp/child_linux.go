package mcp

import (
	"os"
	"os/exec"
	"syscall"
	ptr "unsafe" // the room has an unsafe of its own
)

const (
	terminate = syscall.SIGTERM
	kill      = syscall.SIGKILL
)

// ownGroup makes a child the leader of a process group of its own, which can be ended
// whole and gets no Ctrl-C of ours, and has the kernel kill it when we die, even of
// SIGKILL (F24). That holds for the child alone: its own children see the end of its
// pipes, and those that don't care live on. Who must exclude that runs answerd in a
// container, whose end is the end of all.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// signalGroup signals the child and its group. The child must not be reaped yet.
func signalGroup(p *os.Process, sig syscall.Signal) {
	_ = syscall.Kill(-p.Pid, sig) // ESRCH: nobody is left, which is what we want
}

// awaitExit returns when the child has exited, and leaves it unreaped: a zombie keeps
// the number of its group from being given to others.
func awaitExit(cmd *exec.Cmd) {
	const (
		pPid    = 1          // P_PID of waitid(2)
		exited  = 0x4        // WEXITED
		noWait  = 0x01000000 // WNOWAIT
		infoLen = 128        // sizeof siginfo_t
	)
	var info [infoLen / 8]uint64
	for {
		_, _, err := syscall.Syscall6(syscall.SYS_WAITID, pPid, uintptr(cmd.Process.Pid),
			uintptr(ptr.Pointer(&info)), exited|noWait, 0, 0)
		if err != syscall.EINTR {
			return
		}
	}
}
