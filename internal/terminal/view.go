package terminal

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// question is the body of POST /answer/stream.
type question struct {
	Question string `json:"question"`
	ThreadID string `json:"thread_id,omitempty"`
	Agent    string `json:"agent,omitempty"`
}

// maxArguments is how many characters of a call's arguments its line shows.
const maxArguments = 80

// runView shows the events of one run, over all the streams that it takes to read them.
type runView struct {
	session  *Session
	question question
	key      string     // the idempotency key of the question: sent again, it attaches to the same run
	lastID   string     // position to resume from; "" before the first event
	start    startEvent // its runID is "" before the first event
	text     textWriter // for Out
}

// startEvent is the event that a run begins with.
type startEvent struct {
	event.Start
	runID string
}

// textWriter writes the model's text. Its end finishes what is not written yet.
type textWriter interface {
	write(text string) error
	end() error
}

// newRunView returns the view of a run that is not asked yet. How its text is written depends on the options:
// not at all with JSON, as Markdown on a terminal, and otherwise as it is, for other programs.
func (s *Session) newRunView(q question) *runView {
	r := &runView{session: s, question: q, key: rand.Text()}
	switch {
	case s.options.JSON:
		r.text = noText{}
	case s.options.OutTerminal:
		r.text = &markdownWriter{w: s.options.Out}
	default:
		r.text = &rawWriter{w: s.options.Out}
	}
	return r
}

// noText drops the text, which is part of the JSON document.
type noText struct{}

func (noText) write(string) error { return nil }
func (noText) end() error         { return nil }

// rawWriter writes text as it is, and ends it with a line feed.
type rawWriter struct {
	w    io.Writer
	last byte // last byte that was written; 0 if none
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

// endText finishes the text of a step. An error of Out ends the run at the next write.
func (r *runView) endText() { _ = r.text.end() }

// showEvent shows an event. Types that it does not know are skipped, as the API asks of clients.
func (r *runView) showEvent(frame sse.Frame) error {
	switch frame.Event {
	case "start":
		var envelope struct {
			RunID string `json:"run_id"`
		}
		if err := decode(frame, &envelope); err != nil {
			return err
		}
		r.start.runID = envelope.RunID
		if err := decode(frame, &r.start.Start); err != nil {
			return err
		}
		for _, name := range r.start.UnavailableServers {
			r.session.printLine("! the MCP server %s is unavailable; its tools are missing", name)
		}
		r.session.status.set("thinking")
	case "text_delta":
		var delta event.TextDelta
		if err := decode(frame, &delta); err != nil {
			return err
		}
		r.session.status.set("")
		if err := r.text.write(delta.Delta); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
	case "text_end":
		r.endText()
	case "step_reset":
		r.endText()
		r.session.printLine("! another process took over; the last step runs again")
	case "tool_call":
		var call event.ToolCall
		if err := decode(frame, &call); err != nil {
			return err
		}
		r.session.status.set(call.Tool)
	case "tool_progress":
		var progress event.ToolProgress
		if err := decode(frame, &progress); err != nil {
			return err
		}
		r.session.status.set(progressText(progress))
	case "tool_result":
		var result event.ToolResult
		if err := decode(frame, &result); err != nil {
			return err
		}
		r.session.printLine("✓ %s %s (%s)", result.Tool, shorten(string(result.Args)), milliseconds(result.DurationMS))
	case "tool_error":
		var failed event.ToolError
		if err := decode(frame, &failed); err != nil {
			return err
		}
		r.session.printLine("✗ %s %s: %s: %s", failed.Tool, shorten(string(failed.Args)+failed.ArgsText), failed.Kind, shorten(failed.Payload))
	case "budget":
		var budget event.Budget
		if err := decode(frame, &budget); err != nil {
			return err
		}
		r.session.printLine("! budget %s: used %g of %g", budget.Limit, budget.Used, budget.Max)
	}
	return nil
}

// decode decodes the data of an event.
func decode(frame sse.Frame, into any) error {
	if err := json.Unmarshal(frame.Data, into); err != nil {
		return fmt.Errorf("decode the event %s: %w", frame.Event, err)
	}
	return nil
}

// progressText returns what the status line says about the progress of a call.
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

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// shorten returns at most maxArguments characters of text, on one line.
func shorten(text string) string {
	line := []rune(strings.Join(strings.Fields(text), " "))
	if len(line) > maxArguments {
		return string(line[:maxArguments-1]) + "…"
	}
	return string(line)
}
