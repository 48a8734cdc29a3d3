package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// childMain is what the test binary does as a stdio MCP server. It shows at addr that
// it lives: with a connection that ends when the process ends, for whatever reason.
func childMain(kind, addr string) int {
	switch kind {
	case "bridge":
		return connectStdioTo(addr)
	case "probe":
		return probeMain(addr, true)
	case "probe-health":
		return probeMain(addr, false)
	}

	if addr != "" {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return 2
		}
		fmt.Fprintln(conn, kind)
	}

	switch kind {
	case "exit":
		return 3
	case "banner":
		fmt.Print("Welcome!\n\n  v1.2.3\r\n[not json\n")
	case "stderr":
		for range 64 {
			_, _ = os.Stderr.Write([]byte(strings.Repeat("x", 1<<20)))
		}
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		startGrandchild("deaf", addr)
		answerStdin(kind)
		select {}
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		select {}
	}

	answerStdin(kind)
	return 0
}

// connectStdioTo connects its standard input and output to a server at addr, so that a test can act as a
// stdio server.
func connectStdioTo(addr string) int {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 2
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		os.Exit(0)
	}()
	_, _ = io.Copy(os.Stdout, conn)
	return 0
}

// startGrandchild starts a process that is a child of the stdio server.
func startGrandchild(kind, addr string) {
	cmd := exec.Command(os.Args[0], "child", kind, addr)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	_ = cmd.Start() // the test misses it
}

// answerStdin answers until the end of its input.
func answerStdin(kind string) {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line, &m) != nil || m.ID == nil {
			continue
		}
		say := func(format string, args ...any) {
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,`+format+"}\n", append([]any{m.ID}, args...)...)
		}
		switch m.Method {
		case "initialize":
			say(`"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"child","version":"1"}}`)
		case "tools/list":
			say(`"result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)
		case "tools/call":
			switch kind {
			case "die":
				os.Exit(7)
			case "line":
				fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":"`, m.ID)
				for range 100 {
					fmt.Print(strings.Repeat("x", 1<<20))
				}
				fmt.Println(`"}`)
			default:
				say(`"result":{"content":[{"type":"text","text":"ok"}]}`)
			}
		default:
			say(`"error":{"code":-32601,"message":"what?"}`)
		}
	}
}

// childMonitor accepts a connection of each child process, which ends with the child.
type childMonitor struct {
	addr         string
	startedKinds chan string // the kind of each that came up
	endedKinds   chan string // and of each that is gone
}

func newChildMonitor(t testing.TB) *childMonitor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	v := &childMonitor{l.Addr().String(), make(chan string, 4096), make(chan string, 4096)}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				kind, _ := in.ReadString('\n')
				v.startedKinds <- kind
				_, _ = io.Copy(io.Discard, in)
				v.endedKinds <- kind
			}()
		}
	}()
	return v
}

// childConfig is the setting for one stdio server of that kind.
func childConfig(t testing.TB, kind, addr string) string {
	t.Helper()
	setting, _ := mcpConfig(t, fmt.Sprintf(`{"mcpServers":{"child":{"command":%q,"args":["child",%q,%q]}}}`, os.Args[0], kind, addr))
	return setting
}

func TestF23MisbehavingChildFailsItsOwnCallsOnly(t *testing.T) {
	r := beginFault(t, "stdio child: exits at start, dies in a call, prints a banner, 100 MiB line, 64 MiB stderr, ignores the end and SIGTERM, forks", "the call fails or works, the run goes on; its group is gone with us; memory bounded")
	for _, c := range []struct{ kind, fails string }{
		{"exit", "unknown_tool"}, {"die", "unknown_outcome"}, {"banner", ""}, {"line", "too_large"}, {"stderr", ""}, {"stubborn", ""},
	} {
		l := newChildMonitor(t)
		model := llmtest.New(t, callingModel())
		s := start(t, "LLM_BASE_URL="+model.URL, childConfig(t, c.kind, l.addr))
		receiveWithin(t, l.startedKinds, "the child "+c.kind)
		before := s.metric(t, "process_resident_memory_bytes")
		got := r.callErrorKind(s)
		if got != c.fails && !(c.kind == "line" && got == "unknown_outcome") && !(c.kind == "die" && got == "unavailable") {
			t.Errorf("child %s: the call failed as %q, want %q", c.kind, got, c.fails)
		}
		if grown := s.metric(t, "process_resident_memory_bytes") - before; grown > 48<<20 {
			t.Errorf("%s: %.0f MiB more, want at most 48", c.kind, grown/(1<<20))
		}
		if c.kind == "stubborn" {
			receiveWithin(t, l.startedKinds, "its own child")
		}

		d := timeOf(func() {
			if code := s.stop(t); code != 0 {
				t.Errorf("%s: exit code %d\n%s, want 0", c.kind, code, s.out)
			}
		})

		if c.kind == "stubborn" {
			receiveWithin(t, l.endedKinds, "the end of one")
			receiveWithin(t, l.endedKinds, "the end of the other")
			r.record("stubborn group gone in %s", d.Round(time.Second))
		}
	}
}

func TestF24ChildrenDieWithAKilledProcess(t *testing.T) {
	r := beginFault(t, "SIGKILL for us", "the stdio child is gone; clients see a cut, no terminal event")
	l := newChildMonitor(t)

	entered := make(chan struct{}, 1)
	model := llmtest.New(t, llmtest.Turns(func(w http.ResponseWriter, q *http.Request) {
		llmtest.Stream(w, "", textDelta("Well"))
		entered <- struct{}{}
		<-q.Context().Done()
	}))

	s := start(t, "LLM_BASE_URL="+model.URL, childConfig(t, "good", l.addr))
	receiveWithin(t, l.startedKinds, "the child")
	resp, err := s.send(t.Context(), "POST", "/answer/stream", question)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	receiveWithin(t, entered, "the model's request")
	s.signal(t, syscall.SIGKILL)
	receiveWithin(t, l.endedKinds, "the end of the child")
	got, err := readEvents(resp.Body, nil)
	if err == nil || got.last().terminal() {
		t.Errorf("%v after %+v, want an error before the run's end", err, got.last())
	}
	r.record("child gone; %d events, then %v", len(got), err)
}
