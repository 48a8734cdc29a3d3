package faults

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// probeMain asks a service for its health, and asks it a question if questions is true, every 10 ms over
// new connections, until its standard input ends. A percentile of fewer probes would be the slowest of them:
// with one every 50 ms, a load of 5 s had 100. It prints a line for each answer: what, status, and
// microseconds. It is a process of its own, because in the process that makes the load it would wait for a
// processor.
func probeMain(url string, questions bool) int {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	var out sync.Mutex
	probe := func(what, method, path, body string) {
		req, err := http.NewRequest(method, url+path, strings.NewReader(body))
		if err != nil {
			return
		}
		req.Header.Set("Content-Type", "application/json")
		began, status := time.Now(), 0
		if resp, err := client.Do(req); err == nil {
			status = resp.StatusCode
			resp.Body.Close()
		}
		out.Lock()
		defer out.Unlock()
		fmt.Println(what, status, time.Since(began).Microseconds())
	}
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case <-tick.C:
			go probe("health", "GET", "/healthz", "")
			if questions {
				go probe("answer", "POST", "/answer", question)
			}
		case <-ended:
			return 0
		}
	}
}

// probes are what a probeMain measured.
type probes struct {
	health            []time.Duration // of /healthz with the status 200
	unhealthy         int             // other answers of /healthz, or none
	answers, refusals []time.Duration // of the question, with the status 200 and 503
	failed            int             // other answers of the question
}

// startProbes starts a probeMain with questions. stop ends the process and returns what it measured.
func startProbes(t testing.TB, url string) (stop func() probes) {
	t.Helper()
	return startProbeMain(t, "probe", url)
}

// startHealthProbes starts a probeMain without questions.
func startHealthProbes(t testing.TB, url string) (stop func() probes) {
	t.Helper()
	return startProbeMain(t, "probe-health", url)
}

// startProbeMain starts the test binary as a child of that kind, which is a probeMain.
func startProbeMain(t testing.TB, kind, url string) (stop func() probes) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "child", kind, url)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	end := sync.OnceFunc(func() {
		in.Close()
		_ = cmd.Wait() // it has printed what counts
	})
	t.Cleanup(end)

	return func() (p probes) {
		end()
		for lines := bufio.NewScanner(&out); lines.Scan(); {
			f := strings.Fields(lines.Text())
			us, _ := strconv.Atoi(f[2])
			took := time.Duration(us) * time.Microsecond
			switch {
			case f[0] == "health" && f[1] == "200":
				p.health = append(p.health, took)
			case f[0] == "health":
				p.unhealthy++
			case f[1] == "200":
				p.answers = append(p.answers, took)
			case f[1] == "503":
				p.refusals = append(p.refusals, took)
			default:
				p.failed++
			}
		}
		return p
	}
}

// percentile returns the p-th part of the times, 0 where there are none.
func percentile(times []time.Duration, p float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(int(p*float64(len(times))), len(times)-1)].Round(100 * time.Microsecond)
}
