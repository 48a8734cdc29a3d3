package terminal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

const maxLineBytes = 1 << 20 // of the input, if it is not a terminal

// lineReader prints a prompt and reads one line, without its line feed. It returns io.EOF at the
// end of the input, an error that wraps it if the input cannot be read any further, and the context's error if ctx
// ends first.
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
// read, so that Ctrl-C interrupts a run as usual. In raw mode Ctrl-C is the end of the input.
func newTerminalReader(file *os.File, prompts io.Writer) lineReader {
	terminal := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{file, prompts}, "")
	return func(ctx context.Context, prompt string) (string, error) {
		state, err := term.MakeRaw(int(file.Fd()))
		if err != nil {
			return "", fmt.Errorf("prepare the terminal: %w", err)
		}
		defer term.Restore(int(file.Fd()), state)
		terminal.SetPrompt(prompt)
		type line struct {
			text string
			err  error
		}
		read := make(chan line, 1)
		// The goroutine ends with its read. If ctx ends first, the process is about to exit.
		go func() {
			text, err := terminal.ReadLine()
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
