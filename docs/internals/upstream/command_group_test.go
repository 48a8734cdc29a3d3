//go:build upstream && unix

package upstream

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Many servers are started by a shell, npx or uvx. The server is in a group of its own,
// so it could be ended whole.
func TestCommandTransportEndsTheProcessGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	cmd := exec.Command("sh", "-c", `sleep 300 & echo $! >"$0.new" && mv "$0.new" "$0"; wait`, file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	conn, err := (&mcp.CommandTransport{Command: cmd, TerminateDuration: 500 * time.Millisecond}).Connect(within(t, 10*time.Second))
	setup(t, err)
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }()
	var data []byte
	for end := time.Now().Add(10 * time.Second); len(data) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		data, _ = os.ReadFile(file)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	setup(t, err)
	_ = conn.Close()
	time.Sleep(200 * time.Millisecond)
	if syscall.Kill(pid, 0) == nil {
		t.Errorf("after Close the child of the server's process is still running (pid %d)", pid)
	}
}
