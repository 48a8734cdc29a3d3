package mcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"
)

const (
	maxTail     = 64 << 10 // bytes of a child's stderr that are kept
	maxTailLine = 500      // bytes of one line of it in the log
	maxLastWord = 20       // lines of it in the log when the child dies
	maxTailRate = 100      // lines of it in the debug log, per second
)

// listen reads the child's standard output until its end. When nobody wants messages
// any more it reads on, so that the child isn't held up at its end by a full pipe.
func (c *child) listen() {
	c.outErr = c.messages()
	close(c.outDone)
	_, _ = io.Copy(io.Discard, c.stdout)
}

// messages hands on the lines that may be messages. Many servers print a banner there
// first, or logs: that is skipped (F23).
func (c *child) messages() (err error) {
	defer transport.Recover(c.log, func(f *transport.Failure) { err = f })
	in := bufio.NewReaderSize(c.stdout, 32<<10)
	noise := false
	for {
		line, err := readLine(in)
		if err != nil {
			return err
		}
		if !isMessage(line) {
			if len(line) > 0 && !noise {
				noise = true
				c.log.Warn("MCP server prints lines that are not MCP", "first", wire.Printable(string(line), maxTailLine))
			}
			continue
		}
		select {
		case c.lines <- line:
		case <-c.stop:
		}
	}
}

// readLine is the next line without its end, in a slice of its own. More than maxBody
// bytes are tooLarge.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxBody+1 { // the line feed isn't counted
			return nil, transport.AnswerTooLarge(maxBody)
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

// overhear keeps the end of the child's standard error, which the protocol leaves to
// logs.
func (c *child) overhear() {
	defer close(c.errDone)
	buf := make([]byte, 32<<10)
	for {
		n, err := c.stderr.Read(buf)
		c.remember(buf[:n])
		if err != nil {
			return
		}
	}
}

// remember keeps what was said on stderr. Whatever that was, the pipe must be read on.
func (c *child) remember(said []byte) {
	defer transport.Recover(c.log, func(*transport.Failure) {})
	c.tail.add(said)
}

// tail is the last bytes of a stream of lines. Where the debug log is on they go there
// as they come, no more than so many a second.
type tail struct {
	log   *slog.Logger
	debug bool

	// Only the reader touches these, and last after it has ended.
	ring   []byte // of maxTail bytes
	n      int64  // bytes that ever came
	line   []byte // begun, for the debug log
	second time.Time
	lines  int // logged since
}

func newTail(log *slog.Logger) *tail {
	return &tail{log: log, debug: log.Enabled(context.Background(), slog.LevelDebug)}
}

// add takes the next bytes.
func (t *tail) add(b []byte) {
	if len(b) > 0 && t.ring == nil {
		t.ring = make([]byte, maxTail)
	}
	if t.debug {
		t.tell(b)
	}
	for len(b) > 0 {
		n := copy(t.ring[t.n%maxTail:], b)
		t.n += int64(n)
		b = b[n:]
	}
}

// tell logs the lines that b ends.
func (t *tail) tell(b []byte) {
	for len(b) > 0 {
		part, rest, whole := bytes.Cut(b, []byte("\n"))
		b = rest
		t.line = append(t.line, part[:min(len(part), maxTailLine-len(t.line))]...)
		if !whole {
			return
		}
		if now := time.Now(); now.Sub(t.second) >= time.Second {
			t.second, t.lines = now, 0
		}
		if t.lines++; t.lines <= maxTailRate {
			t.log.Debug("MCP server says", "stderr", wire.Printable(string(t.line), maxTailLine))
		}
		t.line = t.line[:0]
	}
}

// last is the last lines.
func (t *tail) last() []string {
	end := int(t.n % maxTail)
	whole := string(t.ring[:min(int64(len(t.ring)), t.n)])
	if t.n > maxTail {
		whole = string(t.ring[end:]) + string(t.ring[:end])
		if _, rest, ok := strings.Cut(whole, "\n"); ok {
			whole = rest // the first line has lost its beginning
		}
	}
	lines := strings.Split(strings.TrimRight(whole, "\r\n"), "\n")
	if len(lines) > maxLastWord {
		lines = lines[len(lines)-maxLastWord:]
	}
	for i, line := range lines {
		lines[i] = wire.Printable(line, maxTailLine)
	}
	return lines
}
