// Package terminal asks questions from a terminal, over the native API of answerd: it is what
// `answerd ask` and `answerd chat` do.
//
//	session := terminal.New(terminal.Options{URL: "http://127.0.0.1:8080", In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
//	defer session.Close()
//	err := session.Ask(ctx, "What is 12.5 * 8?")
//
// The text of the answer goes to Out as it streams. Everything else goes to Err: one line per tool
// call, progress, and questions to the person. A stream that breaks is resumed where it was. When
// ctx ends, the run is cancelled. A Session is for one goroutine.
package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"answerd/internal/client"
	"answerd/internal/event"
)

// ErrInterrupted says that the context ended before the run did. The run was cancelled.
var ErrInterrupted = errors.New("interrupted; the run was cancelled")

// Options configures a Session. In, Out and Err are required.
type Options struct {
	URL string // base URL of the answerd to ask
	// Token returns the bearer token of each request; nil sends none.
	Token  func() (string, error)
	Agent  string // named agent that answers; "" means the default one
	Thread string // thread that the questions continue; "" starts a new one

	JSON       bool   // print the answer as a JSON document instead of its text
	Export     string // file for the export of the run; "" writes none
	ApproveAll bool   // approve every call without a question to the person

	In          io.Reader
	Out, Err    io.Writer
	Interactive bool // a person at In answers approvals and forms; otherwise they are declined
	OutTerminal bool // Out is a terminal: Markdown is rendered, with colours
	ErrTerminal bool // Err is a terminal: a spinner runs during tool calls
	ErrColors   bool // the lines of tool calls have colours
}

// Session asks questions, each of which continues the conversation of those before it.
type Session struct {
	options Options
	client  *client.Client
	status  *statusLine
	read    lineReader // for answers to questions of a run
	readAsk lineReader // for questions of the person, with a history of its own

	thread string // of the conversation, which the server keeps; "" before the first question
	agent  string
}

// New returns a session. The caller must Close it.
func New(o Options) *Session {
	read, readAsk := newLineReaders(o.In, o.Err)
	return &Session{
		options: o,
		client:  client.New(o.URL, o.Token, 2),
		status:  newStatusLine(o.Err, o.ErrTerminal),
		read:    read, readAsk: readAsk,
		thread: o.Thread, agent: o.Agent,
	}
}

// Close releases the connections and the spinner of the session.
func (s *Session) Close() {
	s.status.close()
	s.client.Close()
}

// question is the body of POST /answer/stream.
type question struct {
	Question string `json:"question"`
	ThreadID string `json:"thread_id,omitempty"`
	Agent    string `json:"agent,omitempty"`
}

// answer is the JSON document of an answer (the 200 of POST /answer).
type answer struct {
	Answer          string            `json:"answer"`
	Metadata        event.Metadata    `json:"metadata"`
	RequestMetadata map[string]string `json:"request_metadata,omitempty"`
	RunID           string            `json:"run_id"`
	ThreadID        string            `json:"thread_id"`
	TraceID         string            `json:"trace_id"`
}

// Ask asks one question and returns when the run has ended. It returns an error unless the run
// ended with an answer: ErrInterrupted if ctx ended first, otherwise what the API or the run said.
func (s *Session) Ask(ctx context.Context, text string) error {
	r := s.newRunView(question{text, s.thread, s.agent})
	final, err := s.follow(ctx, r)
	s.status.set("")
	if r.start.ThreadID != "" { // a failed run is a turn too
		s.thread = r.start.ThreadID
	}
	if ctx.Err() == nil && r.start.runID != "" && s.options.Export != "" {
		err = errors.Join(err, s.exportRun(ctx, r.start.runID))
	}
	if ctx.Err() != nil && err != nil {
		s.cancelRun(r)
		return ErrInterrupted
	}
	if err != nil {
		return err
	}
	if s.options.JSON {
		if err := json.NewEncoder(s.options.Out).Encode(answer{
			Answer: final.Answer, Metadata: final.Metadata, RequestMetadata: r.start.Metadata,
			RunID: r.start.runID, ThreadID: r.start.ThreadID, TraceID: r.start.TraceID,
		}); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
	}
	return nil
}

// Chat reads questions from In, one a line, and asks them as one conversation. It returns nil at
// the end of In, or when the person types /quit. A question that fails is reported, and the
// conversation continues.
func (s *Session) Chat(ctx context.Context) error {
	for {
		question, err := s.readAsk(ctx, "> ")
		switch {
		case errors.Is(err, io.EOF):
			return nil
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
			fmt.Fprintln(s.options.Err, "error:", plainText(err.Error()))
		}
	}
}
