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

// ErrInterrupted means that the context ended before the run, or that the user typed Ctrl-C at a prompt. By then Ask
// has cancelled the run, or has reported on Err that it could not.
var ErrInterrupted = errors.New("interrupted; the run was cancelled")

const (
	maxLineBytes = 1 << 20 // longest line of an input that is not a terminal
	ctrlC        = 3       // the byte that a terminal in raw mode sends for Ctrl-C
)

// lineReader prints a prompt and returns the next line without its line feed. The error is io.EOF at the end of the
// input, an error that wraps io.EOF if the input cannot be read any further, ErrInterrupted after Ctrl-C on a terminal,
// or the error of ctx if ctx ends first.
type lineReader func(ctx context.Context, prompt string) (string, error)

// newLineReaders returns two readers of in. On a terminal each has line editing and its own history, so that the
// history of questions does not contain answers to approvals. If in is not a terminal, both are the same reader, and a
// read in progress ends only with the line, not with ctx.
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
			if err := lines.Err(); err != nil { // permanent, for example a line above maxLineBytes
				return "", errors.Join(fmt.Errorf("read a line of the input: %w", err), io.EOF)
			}
			return "", io.EOF
		}
		return lines.Text(), nil
	}
	return read, read
}

// newTerminalReader returns a reader with line editing for a terminal. The terminal is in raw mode only during a read.
// Then Ctrl-C ends the read with ErrInterrupted. Between reads Ctrl-C sends SIGINT as usual.
//
// If ctx ends during a read, the read returns, but its goroutine still waits for a line. That leak does not matter,
// because the process is about to exit.
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
			_ = terminal.SetSize(width, height) // fails only if prompts cannot be written
		}
		terminal.SetPrompt(prompt)
		var text string
		var readErr error
		read := make(chan struct{}) // closed when text and readErr are set
		go func() {
			defer close(read)
			keys.interrupted = false
			text, readErr = terminal.ReadLine()
			if readErr == io.EOF && keys.interrupted {
				readErr = ErrInterrupted
			}
		}()
		select {
		case <-read:
			return text, readErr
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// keyReader records whether the user typed Ctrl-C, because term.Terminal returns io.EOF both for Ctrl-C and for Ctrl-D.
type keyReader struct {
	io.Reader
	interrupted bool // Ctrl-C was typed since the current read began
}

// Read implements io.Reader.
func (k *keyReader) Read(p []byte) (int, error) {
	n, err := k.Reader.Read(p)
	k.interrupted = k.interrupted || bytes.IndexByte(p[:n], ctrlC) >= 0
	return n, err
}
