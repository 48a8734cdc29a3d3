package transport

import (
	"os"
	"os/exec"
	"syscall"
	"unsafe"
)

// ownGroup returns attributes that make a child the leader of its own process group. The whole group can then be
// signalled, and Ctrl-C in answerd's terminal does not reach it. The kernel also kills the child when answerd dies,
// even of SIGKILL. It does not kill the child's own children: if they ignore the end of their pipes, they live on,
// unless answerd runs in a container, which ends with all of its processes.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// signalGroup sends sig to the process group that the child p leads. The child must not be reaped yet, because its id
// could then be that of another group.
func signalGroup(p *os.Process, sig syscall.Signal) {
	_ = syscall.Kill(-p.Pid, sig) // ESRCH means that no process is left, which is fine
}

// awaitExit waits until the child has exited. It does not reap the child, because the id of the process group is not
// reused while the child is a zombie.
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
