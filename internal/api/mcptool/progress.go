package mcptool

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"

	"answerd/internal/event"
)

const (
	// minTextInterval and minProgressInterval are the shortest intervals, in milliseconds, between two messages about
	// the model's text, and between two about the progress of tools. They are measured with the times of the events, so
	// that the same run always has the same messages.
	minTextInterval     = 1000
	minProgressInterval = 200
	maxText             = 2 << 10 // bytes of a message with text of the model
	maxMessage          = 500     // bytes of any other message
)

// ProgressReporter describes a run in short messages, of which a client shows the newest. It needs all of the run's
// events, in order.
type ProgressReporter struct {
	text         string // the current step's text so far, or its last maxText bytes
	reportedText string // the value of text in the step's latest message
	textAt       int64  // the time of the latest message with text, in milliseconds
	progressAt   int64  // the time of the latest message about a tool's progress, in milliseconds
}

// NewProgressReporter returns the reporter for a new run. It reports the first text and the first progress at once.
func NewProgressReporter() *ProgressReporter {
	return &ProgressReporter{textAt: -minTextInterval, progressAt: -minProgressInterval}
}

// MessageFor returns the message that reports e, which must be the run's next event. It returns "" if e is not worth a
// message, or too soon after the previous message about the same thing.
func (r *ProgressReporter) MessageFor(e event.Event) string {
	switch body := e.Body.(type) {
	case event.Start:
		return "Run " + e.RunID + " starts."
	case event.StepStart:
		r.resetText()
		return fmt.Sprintf("Step %d: the model is asked.", body.Step)
	case event.StepReset:
		r.resetText()
		return fmt.Sprintf("Step %d runs again.", body.Step)
	case event.TextDelta:
		return r.addText(body.Delta, e.Time)
	case event.TextEnd:
		return r.reportText(e.Time)
	case event.ToolProgress:
		if e.Time-r.progressAt < minProgressInterval {
			return ""
		}
		r.progressAt = e.Time
		return truncate(fmt.Sprintf("%s: %s", body.Tool, progressText(body)), maxMessage)
	}
	return truncate(callMessage(e.Body), maxMessage)
}

// callMessage returns the message for an event of a call, an interrupt or a budget, or "" for any other event.
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

// progressText returns the tool's own progress message, followed by the amount of its progress.
func progressText(b event.ToolProgress) string {
	amount := fmt.Sprintf("%g", b.Progress)
	if b.Total > 0 {
		amount += fmt.Sprintf(" of %g", b.Total)
	}
	return strings.TrimSpace(b.Message + " (" + amount + ")")
}

// resetText forgets the text, because a step begins or is repeated.
func (r *ProgressReporter) resetText() {
	r.text = ""
	r.reportedText = ""
}

// addText adds delta to the text. It returns the message to send, which is the end of the text so far, or "" if the
// latest message with text is younger than minTextInterval. now is the time of delta's event.
func (r *ProgressReporter) addText(delta string, now int64) string {
	r.text = lastBytes(r.text+delta, maxText)
	if now-r.textAt < minTextInterval {
		return ""
	}
	return r.reportText(now)
}

// reportText returns the end of the text so far, and records that it was reported at the time now. It returns "" if the
// text is blank or has not changed since the latest message.
func (r *ProgressReporter) reportText(now int64) string {
	if strings.TrimSpace(r.text) == "" || r.text == r.reportedText {
		return ""
	}
	r.reportedText = r.text
	r.textAt = now
	return r.text
}

// LogSource returns the level of a server's log message, and the logger's name for the client. That is the server's
// name, followed by the name of the server's logger if it has one, because several servers may use the same logger
// name.
func LogSource(m event.LogMessage) (level, logger string) {
	if m.Logger == "" {
		return m.Level, m.Server
	}
	return m.Level, cmp.Or(m.Server, m.Tool) + "/" + m.Logger
}

// truncate returns s if it has at most limit bytes. Otherwise it returns at most the first limit bytes, without
// splitting a character, and "…".
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// lastBytes returns s if it has at most limit bytes. Otherwise it returns "…" and at most the last limit bytes, without
// splitting a character.
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
