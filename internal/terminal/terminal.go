// Package terminal implements `answerd ask` and `answerd chat`: it asks questions from a terminal, over the native API
// of answerd.
//
//	session := terminal.New(terminal.Options{URL: "http://127.0.0.1:8080", In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
//	defer session.Close()
//	err := session.Ask(ctx, "What is 12.5 * 8?")
//
// The text of the answer goes to Out while it streams. Everything else goes to Err: one line per tool call, progress,
// and questions to the user. A Session resumes a broken stream after the last event, and cancels the run when ctx ends.
// Only one goroutine may use a Session.
//
// Ask sends the question with an idempotency key and reads the events of the run (run.go). A runView shows them
// (view.go): the text through a textWriter, which renders Markdown on a terminal (markdown.go), and the rest
// above the status line (statusline.go). When the run is suspended, the stream ends. The user answers
// (interrupt.go), and a new stream continues after the last event. PlainText removes control characters from all
// text of others before it is shown on a terminal.
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

// answer is the JSON document that Options.JSON prints, as in a response 200 of POST /answer.
type answer struct {
	Answer          string            `json:"answer"`
	Metadata        event.Metadata    `json:"metadata"`
	Output          json.RawMessage   `json:"output,omitempty"` // the answer as a JSON value, if the question has an output schema
	RequestMetadata map[string]string `json:"request_metadata,omitempty"`
	RunID           string            `json:"run_id"`
	ThreadID        string            `json:"thread_id"`
	TraceID         string            `json:"trace_id"`
}

// Ask asks one question, prints the answer, and returns when the run has ended. It returns nil only if the run ended
// with an answer, and ErrInterrupted if ctx ended first or the user typed Ctrl-C at a prompt. If Options.Export is set,
// it also writes the export, even if the run failed.
func (s *Session) Ask(ctx context.Context, text string) error {
	view := s.newRunView(question{text, s.thread, s.options.Agent})
	final, err := s.followRun(ctx, view)
	s.status.set("")
	if view.start.ThreadID != "" { // even after an error: a failed run is a turn of the thread too
		s.thread = view.start.ThreadID
	}
	if err != nil && (ctx.Err() != nil || errors.Is(err, ErrInterrupted)) {
		s.cancelRun(view)
		return ErrInterrupted
	}
	if ctx.Err() == nil && view.runID != "" && s.options.Export != "" {
		err = errors.Join(err, s.exportRun(ctx, view.runID))
	}
	if err != nil {
		return err
	}
	if s.options.JSON {
		return s.printJSON(view, final)
	}
	return nil
}

// printJSON prints the answer of a run as a JSON document.
func (s *Session) printJSON(view *runView, final event.FinalAnswer) error {
	err := json.NewEncoder(s.options.Out).Encode(answer{
		Answer: final.Answer, Metadata: final.Metadata, Output: final.Output, RequestMetadata: view.start.Metadata,
		RunID: view.runID, ThreadID: view.start.ThreadID, TraceID: view.start.TraceID,
	})
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// Chat reads questions from In, one per line, and asks them as one conversation. It returns nil at the end of In, or if
// the user types /quit, /exit or Ctrl-C instead of a question. It returns ErrInterrupted if a question is interrupted
// or ctx ends. Other errors of a question do not end the chat: Chat prints them on Err and continues.
func (s *Session) Chat(ctx context.Context) error {
	for {
		question, err := s.readQuestion(ctx, "> ")
		switch {
		case err == io.EOF, err == ErrInterrupted: // Ctrl-C at the prompt: no run is in progress
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
