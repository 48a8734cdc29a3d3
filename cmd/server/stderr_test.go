package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// muted starts answerd as a process, reads its stderr up to the address, and no
// further. The pipe is the test's.
func muted(t *testing.T, env ...string) (cmd *exec.Cmd, url string, stderr *os.File) {
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
	t.Fatal("answerd did not start")
	return nil, "", nil
}

// shout makes answerd log more than a pipe holds.
func shout(t *testing.T, c *http.Client, url string) {
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

// A collector of logs that hangs is no reason to stop answering.
func TestAServiceWhoseLogNobodyReadsGoesOnAndEnds(t *testing.T) {
	w := newWorld(t, twoTools())
	cmd, url, _ := muted(t, append(w.environ(), "DEBUG=true")...)
	shout(t, web(t), url)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// One that has died is none either: a write to a pipe without a reader ends a program
// that does not say otherwise (SIGPIPE).
func TestAServiceWhoseLogReaderDiedGoesOn(t *testing.T) {
	w := newWorld(t, twoTools())
	cmd, url, stderr := muted(t, append(w.environ(), "DEBUG=true")...)
	stderr.Close()
	shout(t, web(t), url)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
