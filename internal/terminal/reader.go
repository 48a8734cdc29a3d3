package terminal

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// ErrInterrupted says that the context ended before the run did, or that the person typed Ctrl-C. The run was cancelled.
var ErrInterrupted = errors.New("interrupted; the run was cancelled")

const maxLineBytes = 1 << 20 // of the input, if it is not a terminal

// lineReader prints a prompt and reads one line, without its line feed. It returns io.EOF at the
// end of the input, an error that wraps it if the input cannot be read any further, ErrInterrupted after Ctrl-C, and
// the context's error if ctx ends first.
type lineReader func(ctx context.Context, prompt string) (string, error)

// newLineReaders returns two readers of in. On a terminal each has line editing and a history of
// its own, so that answers to approvals are not among the questions. Elsewhere both are the same reader, and
// a read does not end before there is a line, even if ctx ends.
func newLineReaders(in io.Reader, prompts io.Writer) (answers, questions lineReader) {
	if file, ok := in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return newTerminalReader(file, prompts), newTerminalReader(file, prompts)
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLineBytes)
	read := func(ctx context.Context, prompt string) (string, error) {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		fmt.Fprint(prompts, prompt)
		if !lines.Scan() {
			if err := lines.Err(); err != nil { // nothing can be read after it either
				return "", errors.Join(fmt.Errorf("read a line of the input: %w", err), io.EOF)
			}
			return "", io.EOF
		}
		return lines.Text(), nil
	}
	return read, read
}

// newTerminalReader returns a reader with line editing. The terminal is in raw mode only during a
// read, so that Ctrl-C interrupts a run as usual. In raw mode Ctrl-C ends the read with ErrInterrupted.
func newTerminalReader(file *os.File, prompts io.Writer) lineReader {
	keys := &keyReader{Reader: file}
	terminal := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keys, prompts}, "")
	return func(ctx context.Context, prompt string) (string, error) {
		state, err := term.MakeRaw(int(file.Fd()))
		if err != nil {
			return "", fmt.Errorf("prepare the terminal: %w", err)
		}
		defer term.Restore(int(file.Fd()), state)
		if width, height, err := term.GetSize(int(file.Fd())); err == nil {
			_ = terminal.SetSize(width, height) // an error is one of prompts
		}
		terminal.SetPrompt(prompt)
		type line struct {
			text string
			err  error
		}
		read := make(chan line, 1)
		// The goroutine ends with its read. If ctx ends first, the process is about to exit.
		go func() {
			keys.interrupted = false
			text, err := terminal.ReadLine()
			if err == io.EOF && keys.interrupted {
				err = ErrInterrupted
			}
			read <- line{text, err}
		}()
		select {
		case l := <-read:
			return l.text, l.err
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// keyReader records that Ctrl-C was typed, which term.Terminal does not tell from Ctrl-D.
type keyReader struct {
	io.Reader
	interrupted bool
}

// Read implements io.Reader.
func (k *keyReader) Read(p []byte) (int, error) {
	n, err := k.Reader.Read(p)
	k.interrupted = k.interrupted || bytes.IndexByte(p[:n], 3) >= 0
	return n, err
}
