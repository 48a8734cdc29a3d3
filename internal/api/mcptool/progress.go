package mcptool

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"

	"answerd/internal/event"
)

const (
	// textEvery and progressEvery are the shortest intervals between two messages about the text and
	// about the progress of tools, in milliseconds. They are compared with the times of events, so
	// the messages of a run are always the same.
	textEvery     = 1000
	progressEvery = 200
	// maxText and maxMessage bound a message with text of the model, and any other, in bytes.
	maxText    = 2 << 10
	maxMessage = 500
)

// ProgressReporter describes a run in short messages, of which a client shows the newest. It needs
// all events of the run in order, from the first on.
type ProgressReporter struct {
	text       string // the last maxText bytes of the step's text
	shown      string // the text in the latest message about it
	textAt     int64  // the time of that message
	progressAt int64  // the time of the latest message about a tool's progress
}

// NewProgressReporter returns the reporter of a new run. Its first messages are due at once.
func NewProgressReporter() *ProgressReporter {
	return &ProgressReporter{textAt: -textEvery, progressAt: -progressEvery}
}

// MessageFor returns the message that reports an event, or "" if there is nothing to report or the
// last message about the same thing was too recent.
func (n *ProgressReporter) MessageFor(e event.Event) string {
	switch body := e.Body.(type) {
	case event.Start:
		return "Run " + e.RunID + " starts."
	case event.StepStart:
		n.text, n.shown = "", ""
		return fmt.Sprintf("Step %d: the model is asked.", body.Step)
	case event.StepReset:
		n.text, n.shown = "", ""
		return fmt.Sprintf("Step %d runs again.", body.Step)
	case event.TextDelta:
		return n.addText(body.Delta, e.Time)
	case event.TextEnd:
		return n.newText(e.Time)
	case event.ToolProgress:
		if e.Time-n.progressAt < progressEvery {
			return ""
		}
		n.progressAt = e.Time
		return truncate(fmt.Sprintf("%s: %s", body.Tool, progressText(body)), maxMessage)
	}
	return truncate(callMessage(e.Body), maxMessage)
}

// callMessage returns the message for events of calls, interrupts and budgets, or "" for others.
func callMessage(body event.Body) string {
	switch b := body.(type) {
	case event.ToolCall:
		return b.Tool + " is called."
	case event.ToolResult:
		return fmt.Sprintf("%s has answered after %d ms.", b.Tool, b.DurationMS)
	case event.ToolError:
		return fmt.Sprintf("%s failed (%s): %s", b.Tool, b.Kind, b.Payload)
	case event.ApprovalRequired:
		return "A person must agree: " + b.Message
	case event.ApprovalResolved:
		if b.Approved {
			return b.Tool + " is approved."
		}
		return b.Tool + " is refused."
	case event.Elicitation:
		return "A person is asked: " + b.Message
	case event.ElicitationResolved:
		return fmt.Sprintf("%s was answered: %s.", b.Tool, b.Action)
	case event.Budget:
		return fmt.Sprintf("Budget: %s %g of %g.", b.Limit, b.Used, b.Max)
	}
	return ""
}

// progressText returns a tool's own message with the amount of its progress.
func progressText(b event.ToolProgress) string {
	amount := fmt.Sprintf("%g", b.Progress)
	if b.Total > 0 {
		amount += fmt.Sprintf(" of %g", b.Total)
	}
	return strings.TrimSpace(b.Message + " (" + amount + ")")
}

// addText adds a delta and returns the text so far, or "" if the last message about it is younger
// than textEvery.
func (n *ProgressReporter) addText(delta string, now int64) string {
	n.text = lastBytes(n.text+delta, maxText)
	if now-n.textAt < textEvery {
		return ""
	}
	return n.newText(now)
}

// newText returns the text so far, or "" if the last message had it already.
func (n *ProgressReporter) newText(now int64) string {
	if strings.TrimSpace(n.text) == "" || n.text == n.shown {
		return ""
	}
	n.shown, n.textAt = n.text, now
	return n.text
}

// LogSource returns the level and the logger name of a server's log message. The name begins with
// the server, because the loggers of several servers may have the same name.
func LogSource(m event.LogMessage) (level, logger string) {
	if m.Logger == "" {
		return m.Level, m.Server
	}
	return m.Level, cmp.Or(m.Server, m.Tool) + "/" + m.Logger
}

// truncate returns at most limit bytes of s, cut between characters, with "…" after them if s was
// longer.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

// lastBytes returns at most the last limit bytes of s, cut between characters, with "…" before
// them if s was longer.
func lastBytes(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	from := len(s) - limit
	for from < len(s) && !utf8.RuneStart(s[from]) {
		from++
	}
	return "…" + s[from:]
}
