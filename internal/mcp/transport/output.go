package transport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"answerd/internal/help"
	"answerd/internal/mcp/wire"
)

const (
	maxTail      = 64 << 10 // how many bytes of a child's stderr are kept
	maxTailLine  = 500      // how many bytes of a line are logged
	maxExitLines = 20       // how many lines are logged when the child exits
	maxTailRate  = 100      // how many lines per second go to the debug log
)

// readStdout reads the child's stdout to its end. After readMessages has ended, it discards the rest, because a full
// pipe could keep the child from exiting.
func (p *process) readStdout() {
	p.outErr = p.readMessages()
	close(p.outDone)
	_, _ = io.Copy(io.Discard, p.stdout)
}

// readMessages sends the lines of stdout that may be messages to p.lines; after Close it discards them. It skips other
// lines, such as a banner or logs, and logs only the first of them. It returns the error that ends reading, or io.EOF.
func (p *process) readMessages() (err error) {
	defer Recover(p.log, func(f *Failure) { err = f })
	in := bufio.NewReaderSize(p.stdout, 32<<10)
	hasWarned := false
	for {
		line, err := readLine(in, &p.readLimit)
		if err != nil {
			return err
		}
		line = bytes.TrimPrefix(line, byteOrderMark)
		switch {
		case isMessage(line):
			select {
			case p.lines <- line:
			case <-p.stop:
			}
		case len(line) > 0 && !hasWarned:
			hasWarned = true
			first := wire.Printable(string(line), maxTailLine)
			p.log.Warn("MCP server prints lines that are not MCP", "first", first, help.ChildProcesses.Attr())
		}
	}
}

// readLine returns the next line without its line break, in a new slice. The last line may lack a line break. If a
// line has more than limit bytes, readLine returns the failure AnswerTooLarge. limit may change during the call.
func readLine(in *bufio.Reader, limit *atomic.Int64) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if maxBytes := int(limit.Load()); len(line)+len(part) > maxBytes+1 { // plus the line feed
			return nil, AnswerTooLarge(maxBytes)
		}
		line = append(line, part...)
		isLastLine := errors.Is(err, io.EOF) && len(line) > 0
		if err == nil || isLastLine {
			return bytes.TrimRight(line, "\r\n"), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) { // otherwise the line continues
			return nil, err
		}
	}
}

// isMessage reports whether line may be a JSON-RPC message or a batch, because it begins like a JSON object or array.
func isMessage(line []byte) bool {
	line = bytes.TrimLeft(line, " \t")
	return len(line) > 0 && (line[0] == '{' || line[0] == '[')
}

// readStderr reads the child's stderr, to which MCP servers may write logs, to its end and adds it to p.tail.
func (p *process) readStderr() {
	defer close(p.errDone)
	buf := make([]byte, 32<<10)
	for {
		n, err := p.stderr.Read(buf)
		p.keepStderr(buf[:n])
		if err != nil {
			return
		}
	}
}

// keepStderr adds data to p.tail. It recovers from a panic, because readStderr must keep reading the pipe.
func (p *process) keepStderr(data []byte) {
	defer Recover(p.log, func(*Failure) {})
	p.tail.add(data)
}

// stderrTail keeps the last maxTail bytes of a stream of lines. If debug logging is on, it also logs the lines as they
// arrive, at most maxTailRate per second.
type stderrTail struct {
	log   *slog.Logger
	debug bool // debug logging is on

	// Only the goroutine of readStderr uses the fields below; lastLines may use them after that goroutine has ended.

	last          []byte    // the last bytes: at least maxTail of them once so many were received
	isCut         bool      // earlier bytes were dropped from last
	line          []byte    // the beginning of the unfinished line, for the debug log
	secondStart   time.Time // when the rate limit's current second began
	linesInSecond int       // lines since secondStart
}

// newStderrTail returns an empty stderrTail. It reads from log whether debug logging is on.
func newStderrTail(log *slog.Logger) *stderrTail {
	return &stderrTail{log: log, debug: log.Enabled(context.Background(), slog.LevelDebug)}
}

// add adds the next bytes of the stream.
func (t *stderrTail) add(buf []byte) {
	if t.debug {
		t.logLines(buf)
	}
	t.last = append(t.last, buf...)
	if len(t.last) > 2*maxTail { // only then, so that few bytes are copied for each byte received
		t.last = slices.Delete(t.last, 0, len(t.last)-maxTail)
		t.isCut = true
	}
}

// logLines logs the lines that end in b, within the rate limit. It keeps an unfinished line for the next call.
func (t *stderrTail) logLines(b []byte) {
	for len(b) > 0 {
		part, rest, isComplete := bytes.Cut(b, []byte("\n"))
		b = rest
		fitting := min(len(part), maxTailLine-len(t.line)) // bytes; the rest of the line is not logged
		t.line = append(t.line, part[:fitting]...)
		if !isComplete {
			return
		}
		if now := time.Now(); now.Sub(t.secondStart) >= time.Second {
			t.secondStart, t.linesInSecond = now, 0
		}
		t.linesInSecond++
		if t.linesInSecond <= maxTailRate {
			t.log.Debug("MCP server wrote to stderr", "stderr", wire.Printable(string(t.line), maxTailLine))
		}
		t.line = t.line[:0]
	}
}

// lastLines returns the last maxExitLines lines. Each is made printable and cut to maxTailLine bytes.
func (t *stderrTail) lastLines() []string {
	text := string(t.last[max(0, len(t.last)-maxTail):])
	if t.isCut || len(text) < len(t.last) {
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest // drop the first line, whose beginning is missing
		}
	}
	lines := strings.Split(strings.TrimRight(text, "\r\n"), "\n")
	if len(lines) > maxExitLines {
		lines = lines[len(lines)-maxExitLines:]
	}
	for i, line := range lines {
		lines[i] = wire.Printable(line, maxTailLine)
	}
	return lines
}
