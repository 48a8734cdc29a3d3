package main

import (
	"bufio"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// everythingServer is the reference server over Streamable HTTP, as a process.
type everythingServer struct {
	url, port string
	stop      func()
}

// nodeCommand is where Node is, or the end of the test.
func nodeCommand(t *testing.T) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node is missing")
	}
	return node
}

func script(modules, server string) string {
	return filepath.Join(modules, "@modelcontextprotocol", "server-"+server, "dist", "index.js")
}

// startEverything starts the server on that port, on a free one for "", and returns
// when it listens.
func startEverything(t *testing.T, modules, port string) everythingServer {
	t.Helper()
	if port == "" {
		port = freePort(t)
	}
	read, write := io.Pipe()
	cmd := exec.Command(nodeCommand(t), script(modules, "everything"), "streamableHttp")
	cmd.Env = []string{"PORT=" + port}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening, gone := make(chan struct{}), make(chan struct{})
	go func() {
		_ = cmd.Wait()
		write.Close() // the end of what is read below
	}()
	go func() {
		defer close(gone)
		told := false
		for lines := bufio.NewScanner(read); lines.Scan(); {
			if !told && strings.Contains(lines.Text(), "listening") {
				close(listening)
				told = true
			}
		}
	}()
	stop := func() {
		_ = cmd.Process.Kill() // it has nothing to clean up
		<-gone
	}
	t.Cleanup(stop)
	select {
	case <-listening:
	case <-gone:
		t.Fatal("the server ended before it listened")
	}
	return everythingServer{"http://127.0.0.1:" + port + "/mcp", port, stop}
}

// freePort is one that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
