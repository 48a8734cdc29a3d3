package terminal

import (
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"time"

	"answerd/internal/event"
)

// question is the body of POST /answer/stream.
type question struct {
	Question string `json:"question"`
	ThreadID string `json:"thread_id,omitempty"`
	Agent    string `json:"agent,omitempty"`
}

// maxShown bounds the characters of arguments, errors and progress messages on a line.
const maxShown = 80

// runView shows the events of one run. The events may come from several streams, so the view also holds the state that
// is needed to resume.
type runView struct {
	session  *Session
	question question
	key      string      // idempotency key of the question
	lastID   string      // id of the last event, to resume after it; "" before the first event
	runID    string      // "" before the first event
	start    event.Start // the first event; zero before it
	text     textWriter  // for Out
}

// textWriter writes the model's text to Out.
type textWriter interface {
	write(text string) error // text is the next delta
	end() error              // ends the text of a step, even if the text is incomplete
}

// newRunView returns the view of a run whose question has not been sent yet. With Options.JSON the view does not write
// the text. With OutTerminal it renders the text as Markdown. Otherwise it writes the text unchanged, for other
// programs.
func (s *Session) newRunView(q question) *runView {
	r := &runView{session: s, question: q, key: rand.Text()}
	switch {
	case s.options.JSON:
		r.text = &rawWriter{w: io.Discard} // Ask prints the text in a JSON document
	case s.options.OutTerminal:
		r.text = &markdownWriter{w: s.options.Out}
	default:
		r.text = &rawWriter{w: s.options.Out}
	}
	return r
}

// rawWriter writes text unchanged, and ends it with a line feed if it has none.
type rawWriter struct {
	w    io.Writer
	last byte // last byte that was written; 0 before the first
}

func (w *rawWriter) write(text string) error {
	if text == "" {
		return nil
	}
	w.last = text[len(text)-1]
	_, err := io.WriteString(w.w, text)
	return err
}

func (w *rawWriter) end() error {
	if w.last == 0 || w.last == '\n' {
		return nil
	}
	return w.write("\n")
}

// endText ends the text of a step. It ignores an error of Out, because the next write fails too and ends the run.
func (r *runView) endText() { _ = r.text.end() }

// showEvent shows an event: text on Out, and everything else on Err. A start event also sets r.runID and r.start.
// showEvent ignores events of unknown types, as the API requires of clients. Its error comes from writing to Out.
func (r *runView) showEvent(e event.Event) error {
	switch body := e.Body.(type) {
	case event.Start:
		r.runID, r.start = e.RunID, body
		for _, name := range body.UnavailableServers {
			r.session.printLine("! the MCP server %s is unavailable; its tools are missing", name)
		}
		r.session.status.set("thinking")
	case event.TextDelta:
		r.session.status.set("")
		if err := r.text.write(body.Delta); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
	case event.TextEnd:
		r.endText()
	case event.StepReset:
		r.endText()
		r.session.printLine("! another process took over; the last step runs again")
	case event.ToolCall:
		r.session.status.set(body.Tool)
	case event.ToolProgress:
		r.session.status.set(progressText(body))
	case event.ToolResult:
		r.session.printLine("✓ %s %s (%s)", body.Tool, shorten(string(body.Args)), time.Duration(body.DurationMS)*time.Millisecond)
	case event.ToolError:
		r.session.printLine("✗ %s %s: %s: %s", body.Tool, shorten(string(body.Args)+body.ArgsText), body.Kind, shorten(body.Payload))
	case event.Budget:
		r.session.printLine("! budget %s: used %g of %g", body.Limit, body.Used, body.Max)
	}
	return nil
}

// progressText returns the status line for the progress of a call: the tool, the percentage if the MCP server gave a
// total, and the server's message.
func progressText(p event.ToolProgress) string {
	text := p.Tool
	if p.Total > 0 {
		text += fmt.Sprintf(" %.0f %%", 100*p.Progress/p.Total)
	}
	if p.Message != "" {
		text += ": " + p.Message
	}
	return shorten(text)
}

// shorten joins the lines of text into one and cuts it to maxShown characters.
func shorten(text string) string {
	line := []rune(strings.Join(strings.Fields(text), " "))
	if len(line) > maxShown {
		return string(line[:maxShown-1]) + "…"
	}
	return string(line)
}
