package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
)

// childMain is what the test binary does as a child. The first argument of each kind is
// the address where it shows that it lives; see childMonitor.
func childMain(kind string, args []string) int {
	connectToMonitor(kind, args[0])
	switch kind {
	case "exit": // before it has said anything
		fmt.Fprintln(os.Stderr, "no licence found")
		return 3
	case "legacy": // go-sdk#1177: dies of what comes before initialize
		in := bufio.NewReader(os.Stdin)
		line, _ := in.ReadString('\n')
		if strings.Contains(line, methodDiscover) {
			return 4
		}
		return serveStdio(io.MultiReader(strings.NewReader(line), in))
	case "brief": // comes up, and dies of its first call
		pr, pw := io.Pipe()
		go serveStdio(pr)
		in := bufio.NewReader(os.Stdin)
		for {
			line, err := in.ReadString('\n')
			if err != nil || strings.Contains(line, "tools/call") {
				return 7 // before it can be answered
			}
			if _, err := io.WriteString(pw, line); err != nil {
				return 6
			}
		}
	case "banner":
		fmt.Print("Welcome!\n\n  v1.2.3\r\n{\"level\":\"info\",\"msg\":\"up\"}\n[not json\n")
	case "bom": // before its first message
		fmt.Print("\ufeff")
	case "stderr": // without a line feed, then with nothing else
		line := append(bytes.Repeat([]byte("x"), 1<<20-1), '\n')
		for range 128 {
			_, _ = os.Stderr.Write(bytes.Repeat([]byte("\x00"), 1<<20))
			_, _ = os.Stderr.Write(line)
		}
	case "stubborn": // ignores the end of its input and SIGTERM
		signal.Ignore(syscall.SIGTERM)
		grandchild("ignores-sigterm", args[0])
		serveStdio(os.Stdin)
		select {}
	case "ignores-sigterm":
		signal.Ignore(syscall.SIGTERM)
		select {}
	case "wrapper": // its own child keeps its pipes open
		grandchild("ignores-input", args[0])
	case "ignores-input":
		select {}
	case "reader": // a well-behaved one, who ends with its input
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	case "family": // of each kind one
		grandchild("ignores-input", args[0])
		grandchild("reader", args[0])
		signal.Ignore(syscall.SIGTERM)
		serveStdio(os.Stdin)
		select {}
	case "many": // its list of tools is one page of 6 MB
		if err := newLargeListServer().Run(context.Background(), &sdk.IOTransport{Reader: os.Stdin, Writer: os.Stdout}); err != nil {
			return 1
		}
		return 0
	case "parent": // an answerd that is killed
		c, err := New([]config.Server{stdioConfig("family", args[0])}, Options{})
		if err != nil {
			return 5
		}
		c.Tools(context.Background())
		select {}
	}
	return serveStdio(os.Stdin)
}

// grandchild starts a process with all of our pipes.
func grandchild(kind, addr string) {
	cmd := exec.Command(os.Args[0], "child", kind, addr)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}

// serveStdio is a real MCP server until the end of its input.
func serveStdio(in io.Reader) int {
	s := newServerWithInstructions("Ask me over pipes.", func(s *sdk.Server) {
		reply := func(v any) (*sdk.CallToolResult, error) {
			b, err := json.Marshal(v)
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(b)}}}, err
		}
		addRawTool(s, "world", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			dir, err := os.Getwd()
			if err != nil {
				return nil, err
			}
			return reply(map[string]any{"env": os.Environ(), "dir": dir, "pid": os.Getpid(), "group": groupID(), "args": os.Args})
		})
		addMetaTool(s)
		addRawTool(s, "die", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			fmt.Fprintln(os.Stderr, "cannot go on")
			os.Exit(3)
			return nil, nil
		})
		addRawTool(s, "flood", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			fmt.Print(`{"jsonrpc":"2.0","id":1,"result":"`)
			for range 100 {
				_, _ = os.Stdout.Write(bytes.Repeat([]byte("x"), 1<<20))
			}
			fmt.Println(`"}`)
			return reply(nil)
		})
		addRawTool(s, "work", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			for i := range 20 {
				if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
					ProgressToken: r.Params.GetProgressToken(), Progress: float64(i), Total: 20}); err != nil {
					return nil, err
				}
			}
			return reply("done")
		})
		addRawTool(s, "hang", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			connectToMonitor("hanging", os.Args[3])
			<-ctx.Done()
			connectToMonitor("cancelled", os.Args[3])
			return nil, ctx.Err()
		})
	})
	if err := s.Run(context.Background(), &sdk.IOTransport{Reader: io.NopCloser(in), Writer: os.Stdout}); err != nil {
		return 1
	}
	return 0
}

// connectToMonitor tells the listener at addr that this process is alive: with a connection that ends with the
// process, and on which it answers.
func connectToMonitor(kind, addr string) {
	if addr == "" {
		return
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(conn, "%s %d\n", kind, os.Getpid())
	go func() { _, _ = io.Copy(conn, conn) }()
}

// childMonitor accepts a connection from each child process, which the child keeps open until it ends.
type childMonitor struct {
	t testing.TB
	net.Listener
	started chan *childProcess
}

// childProcess is a process that has connected to a childMonitor.
type childProcess struct {
	kind string
	pid  int
	conn net.Conn
	in   *bufio.Reader
}

func newChildMonitor(t testing.TB) *childMonitor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &childMonitor{t: t, Listener: l, started: make(chan *childProcess, 4096)}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p := &childProcess{conn: conn, in: bufio.NewReader(conn)}
			if _, err := fmt.Fscanf(p.in, "%s %d\n", &p.kind, &p.pid); err != nil {
				_ = conn.Close()
				continue
			}
			w.started <- p
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-gone })
	return w
}

func (w *childMonitor) addr() string { return w.Addr().String() }

// waitForStart returns the next process that connects. It fails the test if that process is of another kind, or no
// process connects within a minute.
func (w *childMonitor) waitForStart(kind string) *childProcess {
	w.t.Helper()
	p := &childProcess{kind: "none within a minute"}
	select {
	case p = <-w.started:
	case <-time.After(time.Minute):
	}
	if p.kind != kind {
		w.t.Fatalf("got a process of kind %s, want %s", p.kind, kind)
	}
	return p
}

// waitForEnd waits until the connection closes, which happens when the process ends.
func (p *childProcess) waitForEnd() { _, _ = io.Copy(io.Discard, p.in) }

// isAlive reports whether the process answers.
func (p *childProcess) isAlive() bool {
	if _, err := fmt.Fprintln(p.conn, "are you there?"); err != nil {
		return false
	}
	_, err := p.in.ReadString('\n')
	return err == nil
}

// stdioConfig is a server that is this test binary as a child.
func stdioConfig(kind, addr string) config.Server {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return config.Server{Name: "a", Command: self, Args: []string{"child", kind, addr}, Env: map[string]auth.Secret{
		"GORACE": auth.NewSecret("atexit_sleep_ms=0"), // the race detector's is a second
	}}
}
