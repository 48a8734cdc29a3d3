//go:build upstream && unix

package upstream

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Many servers are started by a shell, npx or uvx. The server is in a group of its own,
// so it could be ended whole. Its child holds the other end of a pipe open.
func TestCommandTransportEndsTheProcessGroup(t *testing.T) {
	r, w, err := os.Pipe()
	skipOnError(t, err)
	defer r.Close()
	cmd := exec.Command("sh", "-c", `sleep 300 & echo >&3; wait`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.ExtraFiles = []*os.File{w}
	conn, err := (&mcp.CommandTransport{Command: cmd, TerminateDuration: 500 * time.Millisecond}).Connect(timeoutContext(t, 10*time.Second))
	_ = w.Close()
	skipOnError(t, err)
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }()
	in := bufio.NewReader(r)
	_, err = in.ReadString('\n') // the child runs
	skipOnError(t, err)
	_ = conn.Close()
	skipOnError(t, r.SetReadDeadline(time.Now().Add(3*time.Second)))
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("3 s after Close the child of the server's process is still running (reading its pipe: %v), want it ended", err)
	}
}
