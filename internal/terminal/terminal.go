// Package terminal asks questions from a terminal, over the native API of answerd: it is what
// `answerd ask` and `answerd chat` do.
//
//	session := terminal.New(terminal.Options{URL: "http://127.0.0.1:8080", In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
//	defer session.Close()
//	err := session.Ask(ctx, "What is 12.5 * 8?")
//
// The text of the answer goes to Out as it streams. Everything else goes to Err: one line per tool
// call, progress, and questions to the person. A stream that breaks is resumed after the last event.
// When ctx ends, the run is cancelled. A Session is for one goroutine.
//
// Ask sends the question with an idempotency key and reads the events of the run (run.go). A runView shows them
// (view.go): the text through a textWriter, which renders Markdown on a terminal (markdown.go), and the rest
// above the status line (statusline.go). When the run is suspended, the stream ends; the person answers
// (interrupt.go), and a new stream continues after the last event. All text from outside goes through PlainText
// before a terminal gets it.
package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"answerd/internal/event"
)

// answer is the JSON document of an answer (the 200 of POST /answer).
type answer struct {
	Answer          string            `json:"answer"`
	Metadata        event.Metadata    `json:"metadata"`
	Output          json.RawMessage   `json:"output,omitempty"` // the answer as a value, if it must be JSON of a schema
	RequestMetadata map[string]string `json:"request_metadata,omitempty"`
	RunID           string            `json:"run_id"`
	ThreadID        string            `json:"thread_id"`
	TraceID         string            `json:"trace_id"`
}

// Ask asks one question, prints the answer, and returns when the run has ended. It returns nil only if the run ended
// with an answer. The error is ErrInterrupted if ctx ended first or the person typed Ctrl-C at a prompt. With
// Options.Export it writes the export, also of a run that failed.
func (s *Session) Ask(ctx context.Context, text string) error {
	view := s.newRunView(question{text, s.thread, s.options.Agent})
	final, err := s.followRun(ctx, view)
	s.status.set("")
	if view.start.ThreadID != "" { // also after a failure: the run is a turn of the thread
		s.thread = view.start.ThreadID
	}
	if err != nil && (ctx.Err() != nil || errors.Is(err, ErrInterrupted)) {
		s.cancelRun(view)
		return ErrInterrupted
	}
	if ctx.Err() == nil && view.start.runID != "" && s.options.Export != "" {
		err = errors.Join(err, s.exportRun(ctx, view.start.runID))
	}
	if err != nil {
		return err
	}
	if s.options.JSON {
		if err := json.NewEncoder(s.options.Out).Encode(answer{
			Answer: final.Answer, Metadata: final.Metadata, Output: final.Output, RequestMetadata: view.start.Metadata,
			RunID: view.start.runID, ThreadID: view.start.ThreadID, TraceID: view.start.TraceID,
		}); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
	}
	return nil
}

// Chat reads questions from In, one per line, and asks them as one conversation. It returns nil at the end of In, or
// when the person types /quit, /exit or Ctrl-C instead of a question, and ErrInterrupted if a question is interrupted
// or ctx ends. It reports the error of a question on Err and continues.
func (s *Session) Chat(ctx context.Context) error {
	for {
		question, err := s.readQuestion(ctx, "> ")
		switch {
		case err == io.EOF, err == ErrInterrupted: // no run is in progress
			return nil
		case ctx.Err() != nil:
			return ErrInterrupted
		case err != nil:
			return err
		}
		switch question = strings.TrimSpace(question); question {
		case "":
			continue
		case "/quit", "/exit":
			return nil
		}
		if err := s.Ask(ctx, question); errors.Is(err, ErrInterrupted) {
			return err
		} else if err != nil {
			fmt.Fprintln(s.options.Err, "error:", PlainText(err.Error()))
		}
	}
}
