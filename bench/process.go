package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child process that serves HTTP.
type process struct {
	cmd     *exec.Cmd
	url     string
	started time.Duration // time from its start until it accepts connections
	done    chan error    // gets the result of Wait when the process has ended
}

// childTimeout bounds how long a child process may take to start, and to end after it is killed.
const childTimeout = 20 * time.Second

// startProcess starts cmd and waits for the address at which it serves. out returns the pipe with the child's output.
// address returns the address in a line of it, or "" if the line has none. It is an error if the child ends before, or
// takes longer than childTimeout.
func startProcess(ctx context.Context, cmd *exec.Cmd, out func() (io.ReadCloser, error), address func(line []byte) string) (*process, error) {
	lines, err := out()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &process{cmd: cmd, done: make(chan error, 1)}
	found := make(chan string, 1)
	go func() {
		scan := bufio.NewScanner(lines)
		for scan.Scan() {
			if a := address(scan.Bytes()); a != "" && p.started == 0 {
				p.started = time.Since(began)
				found <- a
			}
		}
		_, _ = io.Copy(io.Discard, lines)
		p.done <- cmd.Wait()
	}()
	select {
	case a := <-found:
		p.url = "http://" + a
		return p, nil
	case err := <-p.done:
		return nil, fmt.Errorf("%s ended before it served: %w", cmd.Path, err)
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), p.kill())
	case <-time.After(childTimeout):
		return nil, errors.Join(fmt.Errorf("%s does not serve", cmd.Path), p.kill())
	}
}

// startSelf starts this program in one of its roles: args are the role and its arguments.
func startSelf(ctx context.Context, args ...string) (*process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	return startProcess(ctx, cmd, cmd.StdoutPipe, func(line []byte) string { return string(line) })
}

// startService starts the answerd at path and waits for the log line with the address that it listens on.
func startService(ctx context.Context, path string, environ []string) (*process, error) {
	cmd := exec.Command(path)
	cmd.Env = append(environ, "ADDR=127.0.0.1:0", "PATH="+os.Getenv("PATH"))
	return startProcess(ctx, cmd, cmd.StderrPipe, func(line []byte) string {
		var said struct{ Msg, Addr string }
		if json.Unmarshal(line, &said) != nil || said.Msg != "listening" {
			return ""
		}
		return said.Addr
	})
}

// kill ends the process with SIGKILL and waits for it. It must be called only once, because done has a single value.
func (p *process) kill() error {
	_ = p.cmd.Process.Kill() // fails if the process has ended
	select {
	case <-p.done:
		return nil
	case <-time.After(childTimeout):
		return errors.New("a child does not end")
	}
}

// tick is the unit of CPU time in /proc.
const tick = 10 * time.Millisecond

// cpuTime returns the CPU time that the process has used (proc(5), /proc/PID/stat).
func (p *process) cpuTime() (time.Duration, error) {
	stat, err := os.ReadFile(p.procFile("stat"))
	if err != nil {
		return 0, err
	}
	// The command in parentheses may contain spaces and parentheses, so count the fields after the last parenthesis:
	// fields[0] is field 3 of the file, fields[11] and fields[12] are fields 14 and 15, utime and stime.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return 0, errors.New("/proc/PID/stat is short")
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, errors.Join(err, err2)
}

// residentBytes returns the resident memory of the process.
func (p *process) residentBytes() (int64, error) {
	statm, err := os.ReadFile(p.procFile("statm"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0, errors.New("/proc/PID/statm is short")
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// openDescriptors returns the number of files and sockets that the process has open.
func (p *process) openDescriptors() (int, error) {
	entries, err := os.ReadDir(p.procFile("fd"))
	return len(entries), err
}

// procFile returns the path of a file about the process.
func (p *process) procFile(name string) string {
	return filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), name)
}

// getStats requests path from the process and decodes the response, a JSON object of counters.
func (p *process) getStats(path string) (map[string]int64, error) {
	resp, err := http.Get(p.url + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var out map[string]int64
	return out, json.NewDecoder(resp.Body).Decode(&out)
}

// allocations returns how much the service has allocated so far, from its metrics.
func (p *process) allocations() (objects, bytes float64, _ error) {
	values, err := p.readMetrics("go_memstats_mallocs_total", "go_memstats_alloc_bytes_total")
	if err != nil {
		return 0, 0, err
	}
	return values[0], values[1], nil
}

// readMetrics returns the values of the named metrics, in the same order, from /metrics. It finds only series without
// labels. A missing metric is 0.
func (p *process) readMetrics(names ...string) ([]float64, error) {
	resp, err := http.Get(p.url + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	values := make([]float64, len(names))
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if i := slices.Index(names, name); i >= 0 {
			if values[i], err = strconv.ParseFloat(value, 64); err != nil {
				return nil, err
			}
		}
	}
	return values, nil
}

// descriptorLimit returns how many files this process and its children may have open, or 1024 if the limit is unknown.
func descriptorLimit() int {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return 1024
	}
	return int(min(l.Cur, 1<<20))
}
