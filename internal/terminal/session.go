package terminal

import (
	"fmt"
	"io"

	"answerd/internal/client"
)

// Options configures a Session. In, Out and Err are required.
type Options struct {
	URL string // base URL of the answerd to ask
	// Token returns the bearer token for a request and is called for each one; nil sends none.
	Token  func() (string, error)
	Agent  string // named agent that answers; "" means the default one
	Thread string // thread that the questions continue; "" starts a new one

	JSON       bool   // print the answer as a JSON document instead of its text
	Export     string // file for the run's export; "" writes none
	ApproveAll bool   // approve every call and higher limit without asking

	In          io.Reader
	Out, Err    io.Writer
	Interactive bool // a user at In answers approvals and forms; if false, they are declined
	OutTerminal bool // Out is a terminal with colours, so Markdown is rendered
	ErrTerminal bool // Err is a terminal that can erase a line, so a status line is shown
	ErrColors   bool // use colours in the lines on Err
}

// Session asks questions that form one conversation, so all its runs belong to the same thread.
type Session struct {
	options Options
	client  *client.Client
	status  *statusLine

	readAnswer   lineReader // for answers to interrupts
	readQuestion lineReader // for the user's questions; has its own history

	thread string // id of the conversation's thread; "" until the first run has started
}

// New returns a session. The caller must Close it.
func New(o Options) *Session {
	readAnswer, readQuestion := newLineReaders(o.In, o.Err)
	return &Session{
		options:    o,
		client:     client.New(o.URL, o.Token, 2), // idle connections
		status:     newStatusLine(o.Err, o.ErrTerminal),
		readAnswer: readAnswer, readQuestion: readQuestion,
		thread: o.Thread,
	}
}

// Close closes idle connections and removes the status line. It neither closes In, Out and Err nor cancels a run.
func (s *Session) Close() {
	s.status.close()
	s.client.Close()
}

// printLine prints a line to Err, above the status line. It removes control characters and, if ErrColors is set, adds
// colours.
func (s *Session) printLine(format string, args ...any) {
	line := PlainText(fmt.Sprintf(format, args...))
	if s.options.ErrColors {
		line = colorLine(line)
	}
	s.status.println(line)
}
