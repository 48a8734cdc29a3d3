//go:build upstream && faults && unix

package upstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// init makes of this binary a server over stdio where the test has started it as one.
func init() {
	mode := os.Getenv("FAULT_CHILD")
	if mode == "" {
		return
	}
	switch mode {
	case "exit":
		os.Exit(3)
	case "banner":
		fmt.Println("Weather server listening")
	case "stderr":
		line := bytes.Repeat([]byte("x"), 1<<20)
		for range 1024 {
			_, _ = os.Stderr.Write(line)
		}
	case "stubborn", "stubborn-fork":
		signal.Ignore(syscall.SIGTERM)
	case "parent":
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "FAULT_CHILD=stubborn")
		cmd.Stderr = os.Stderr
		if _, err := (&mcp.CommandTransport{Command: cmd}).Connect(context.Background()); err != nil {
			os.Exit(4)
		}
		fmt.Println(cmd.Process.Pid)
		<-time.After(time.Minute)
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var m message
		_ = json.Unmarshal(in.Bytes(), &m)
		switch {
		case m.Method == "initialize":
			writeLine(os.Stdout, m, handshakeResult(m))
		case m.Params.Name == "exit":
			os.Exit(3)
		case m.Params.Name == "long":
			writeLine(os.Stdout, m, textResult(strings.Repeat("x", 100<<20)))
		case m.Params.Name == "garbage":
			fmt.Println("a log line")
			writeLine(os.Stdout, m, textResult("ok"))
		case m.Params.Name == "wrong":
			writeLine(os.Stdout, message{ID: json.RawMessage("9999")}, textResult("ok"))
			writeLine(os.Stdout, m, textResult("ok"))
		case m.Method == "tools/call":
			writeLine(os.Stdout, m, textResult("ok"))
		}
	}
	if strings.HasPrefix(mode, "stubborn") {
		<-time.After(time.Minute) // the end of the input is not heard
	}
	os.Exit(0)
}

func TestMeasureF23(t *testing.T) {
	start := func(mode string) (*mcp.ClientSession, *exec.Cmd, error) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "FAULT_CHILD="+mode)
		cs, err := mcp.NewClient(impl, nil).Connect(timeoutContext(t, 20*time.Second), &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: legacy})
		return cs, cmd, err
	}
	for _, mode := range []string{"exit", "banner", "stderr"} {
		began := time.Now()
		cs, _, err := start(mode)
		t.Logf("F23 %s: Connect: %v after %v", mode, err, time.Since(began).Round(10*time.Millisecond))
		if err == nil {
			t.Logf("F23 %s: %s", mode, describeCall(t, cs, "t", 5*time.Second))
			_ = cs.Close()
		}
	}
	for _, name := range []string{"exit", "garbage", "wrong", "long"} {
		cs, _, err := start("server")
		skipOnError(t, err)
		var got string
		mib := peakHeap(func() { got = describeCall(t, cs, name, 20*time.Second) })
		t.Logf("F23 call %s: %s; heap +%d MiB; next: %s", name, got, mib, describeCall(t, cs, "t", 5*time.Second))
		_ = cs.Close()
	}
	cs, cmd, err := start("stubborn")
	skipOnError(t, err)
	began := time.Now()
	err = cs.Close()
	t.Logf("F23 stubborn: Close after %v: %v, process state %v", time.Since(began).Round(100*time.Millisecond), err, cmd.ProcessState)

	// A grandchild keeps the pipes.
	cmd = exec.Command("sh", "-c", `sleep 60 & exec "$0"`, os.Args[0])
	cmd.Env = append(os.Environ(), "FAULT_CHILD=server")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cs, err = mcp.NewClient(impl, nil).Connect(timeoutContext(t, 20*time.Second), &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: legacy})
	skipOnError(t, err)
	t.Logf("F23 grandchild, child exits in a call: %s; next: %s", describeCall(t, cs, "exit", 3*time.Second), describeCall(t, cs, "t", time.Second))
	began = time.Now()
	err = cs.Close()
	t.Logf("F23 grandchild: Close after %v: %v; group still there: %v", time.Since(began).Round(100*time.Millisecond), err, syscall.Kill(-cmd.Process.Pid, 0) == nil)
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
}

func TestMeasureF24(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FAULT_CHILD=parent")
	out, err := cmd.StdoutPipe()
	skipOnError(t, err)
	skipOnError(t, cmd.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	skipOnError(t, err)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	<-time.After(time.Second)
	t.Logf("F24 1 s after SIGKILL of the parent the child that ignores the end of its input is there: %v", syscall.Kill(pid, 0) == nil)
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
