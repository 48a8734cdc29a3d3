package terminal

import (
	"fmt"
	"io"

	"answerd/internal/client"
)

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
	OutTerminal bool // Out is a terminal with colours, for which Markdown is rendered
	ErrTerminal bool // Err is a terminal that can erase a line: a spinner runs during tool calls
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
	agent  string // Options.Agent
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

// Close releases the connections and the spinner of the session. It does not close In, Out and Err, and cancels
// no run.
func (s *Session) Close() {
	s.status.close()
	s.client.Close()
}

// printLine prints a line to Err, above the status line.
func (s *Session) printLine(format string, args ...any) {
	line := PlainText(fmt.Sprintf(format, args...))
	if s.options.ErrColors {
		line = colorLine(line)
	}
	s.status.println(line)
}
