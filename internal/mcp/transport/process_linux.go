package transport

import (
	"os"
	"os/exec"
	"syscall"
	"unsafe"
)

const (
	terminateSignal = syscall.SIGTERM
	killSignal      = syscall.SIGKILL
)

// ownGroup makes a child the leader of a process group of its own, which can be ended whole and does
// not get our Ctrl-C, and has the kernel kill the child when we die, even of SIGKILL. That holds for
// the child alone: its own children see the end of its pipes, and those that ignore it live on. To
// exclude that, run answerd in a container: all its processes end with it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// signalGroup signals the child and its group. The child must not be reaped yet.
func signalGroup(p *os.Process, sig syscall.Signal) {
	_ = syscall.Kill(-p.Pid, sig) // ESRCH: no process is left, which is what we want
}

// awaitExit returns when the child has exited, and does not reap it: while there is a zombie, the id
// of its group is not given to others.
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
			uintptr(unsafe.Pointer(&info)), exited|noWait, 0, 0)
		if err != syscall.EINTR {
			return
		}
	}
}
