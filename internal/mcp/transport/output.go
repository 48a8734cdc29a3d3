package transport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"answerd/internal/help"
	"answerd/internal/mcp/wire"
)

const (
	maxTail      = 64 << 10 // bytes of a child's stderr that are kept
	maxTailLine  = 500      // bytes of one line of it in the log
	maxExitLines = 20       // lines of it in the log when the child dies
	maxTailRate  = 100      // lines of it in the debug log, per second
)

// readStdout reads the child's standard output until its end. It keeps reading after the connection
// was closed, so that a full pipe does not keep the child from exiting.
func (p *process) readStdout() {
	p.outErr = p.readMessages()
	close(p.outDone)
	_, _ = io.Copy(io.Discard, p.stdout)
}

// readMessages hands on the lines that may be messages. Many servers first print a banner there, or
// logs: those are skipped.
func (p *process) readMessages() (err error) {
	defer Recover(p.log, func(f *Failure) { err = f })
	in := bufio.NewReaderSize(p.stdout, 32<<10)
	noise := false
	for {
		line, err := readLine(in, &p.readLimit)
		if err != nil {
			return err
		}
		line = bytes.TrimPrefix(line, byteOrderMark)
		if !isMessage(line) {
			if len(line) > 0 && !noise {
				noise = true
				p.log.Warn("MCP server prints lines that are not MCP", "first", wire.Printable(string(line), maxTailLine), help.ChildProcesses.Attr())
			}
			continue
		}
		select {
		case p.lines <- line:
		case <-p.stop:
		}
	}
}

// readLine returns the next line without its end, in a slice of its own. More than limit bytes are the
// failure AnswerTooLarge.
func readLine(in *bufio.Reader, limit *atomic.Int64) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if most := int(limit.Load()); len(line)+len(part) > most+1 { // the line feed is not counted
			return nil, AnswerTooLarge(most)
		}
		line = append(line, part...)
		switch {
		case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
			return bytes.TrimRight(line, "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// isMessage reports whether a line may be a JSON-RPC message: an object, or a batch.
func isMessage(line []byte) bool {
	line = bytes.TrimLeft(line, " \t")
	return len(line) > 0 && (line[0] == '{' || line[0] == '[')
}

// readStderr keeps the end of the child's standard error, which the protocol leaves to logs.
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

// keepStderr keeps data of stderr. A panic must not keep the pipe from being read further.
func (p *process) keepStderr(data []byte) {
	defer Recover(p.log, func(*Failure) {})
	p.tail.add(data)
}

// stderrTail keeps the last bytes of a stream of lines. If debug logging is on, the lines are also
// logged as they come, at most maxTailRate per second.
type stderrTail struct {
	log   *slog.Logger
	debug bool

	// Only the reader touches these, and lastLines after the reader has ended.
	ring   []byte // of maxTail bytes
	n      int64  // bytes so far
	line   []byte // not ended yet, for the debug log
	second time.Time
	lines  int // logged since
}

func newStderrTail(log *slog.Logger) *stderrTail {
	return &stderrTail{log: log, debug: log.Enabled(context.Background(), slog.LevelDebug)}
}

// add adds the next bytes.
func (t *stderrTail) add(buf []byte) {
	if len(buf) > 0 && t.ring == nil {
		t.ring = make([]byte, maxTail)
	}
	if t.debug {
		t.logLines(buf)
	}
	for len(buf) > 0 {
		n := copy(t.ring[t.n%maxTail:], buf)
		t.n += int64(n)
		buf = buf[n:]
	}
}

// logLines logs the lines that end in b.
func (t *stderrTail) logLines(b []byte) {
	for len(b) > 0 {
		part, rest, complete := bytes.Cut(b, []byte("\n"))
		b = rest
		t.line = append(t.line, part[:min(len(part), maxTailLine-len(t.line))]...)
		if !complete {
			return
		}
		if now := time.Now(); now.Sub(t.second) >= time.Second {
			t.second, t.lines = now, 0
		}
		t.lines++
		if t.lines <= maxTailRate {
			t.log.Debug("MCP server wrote to stderr", "stderr", wire.Printable(string(t.line), maxTailLine))
		}
		t.line = t.line[:0]
	}
}

// lastLines returns the last lines.
func (t *stderrTail) lastLines() []string {
	end := int(t.n % maxTail)
	text := string(t.ring[:min(int64(len(t.ring)), t.n)])
	if t.n > maxTail {
		text = string(t.ring[end:]) + string(t.ring[:end])
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest // the first line has lost its beginning
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
