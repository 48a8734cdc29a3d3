package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// spawnWithFullPipe starts answerd as a process, reads its stderr up to the address, and no
// further. The pipe is the test's.
func spawnWithFullPipe(t *testing.T, env ...string) (cmd *exec.Cmd, url string, stderr *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(env, "TEST_AS_ANSWERD=1")
	cmd.Stderr = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	listening := regexp.MustCompile(`"listening","addr":"([^"]+)"`)
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if found := listening.FindStringSubmatch(lines.Text()); found != nil {
			return cmd, "http://" + found[1], r
		}
	}
	t.Fatal("answerd did not start, want the line with its address")
	return nil, "", nil
}

// fillLog makes answerd log more than a pipe holds.
func fillLog(t *testing.T, c *http.Client, url string) {
	t.Helper()
	for range 200 {
		resp, err := c.Get(url + "/" + strings.Repeat("x", 1000))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// A log collector that hangs does not stop answers.
func TestServiceContinuesWhenNobodyReadsItsLog(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	cmd, url, _ := spawnWithFullPipe(t, append(w.environ(), "DEBUG=true")...)
	fillLog(t, newClient(t), url)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// One that has died is none either: a write to a pipe without a reader ends a program
// that does not say otherwise (SIGPIPE).
func TestServiceContinuesWhenItsLogReaderDies(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	cmd, url, stderr := spawnWithFullPipe(t, append(w.environ(), "DEBUG=true")...)
	stderr.Close()
	fillLog(t, newClient(t), url)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// newLoggingMCPServer starts a model that answers, and then sends bytes that were not requested.
// net/http logs that by itself.
func newLoggingMCPServer(t *testing.T) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				body := `data: {"choices":[{"delta":{"content":"Yes."},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%sHTTP/1.1 200 OK\r\n\r\n", len(body), body)
			}
			_, _ = io.Copy(io.Discard, c) // until the other side has had enough
			c.Close()
		}
	}()
	return "http://" + l.Addr().String() + "/v1"
}

// Every line on stderr is JSON, those of the libraries too.
func TestLibrariesLogJSONLines(t *testing.T) {
	t.Parallel()
	p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0", "LLM_BASE_URL=" + newLoggingMCPServer(t)})
	if a := postQuestion(t, newClient(t), p.url(t), `{"question":"?"}`); a.Answer != "Yes." {
		t.Errorf("answer %q, want Yes.", a.Answer)
	}
	line := p.waitForLine(t, "Unsolicited response")
	var said struct{ Level, Msg string }
	if err := json.Unmarshal([]byte(line), &said); err != nil || said.Msg == "" {
		t.Errorf("%s: %v, Msg %q, want Msg non-empty, no error", line, err, said.Msg)
	}
	if strings.Contains(said.Msg, "HTTP/1.1") {
		t.Errorf("got the line %s, want none of the endpoint's bytes, which may repeat the API key", line)
	}
	p.signal(t, syscall.SIGTERM)
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}
