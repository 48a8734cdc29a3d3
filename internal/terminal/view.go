package terminal

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// maxArguments is how many characters of a call's arguments its line shows.
const maxArguments = 80

// runView shows the events of one run.
type runView struct {
	session  *Session
	question question
	key      string // the idempotency key of the question
	lastID   string // position to resume from
	start    startEvent
	text     textWriter
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

// show shows an event. Types that it does not know are skipped, as the API asks of clients.
func (r *runView) show(frame sse.Frame) error {
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

// plainText removes control characters and characters that change the direction of text. What
// models and MCP servers send must not control the terminal.
func plainText(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, text)
}

// printLine prints a line to Err, above the status line.
func (s *Session) printLine(format string, args ...any) {
	line := plainText(fmt.Sprintf(format, args...))
	if s.options.ErrColors {
		line = colorLine(line)
	}
	s.status.println(line)
}

// lineStyles has the style of a line's first word, by that word.
var lineStyles = map[string]string{"✓": styleGreen, "✗": styleRed, "!": styleYellow}

// colorLine returns a line with colours: its mark by its meaning, the name of the tool in bold, and
// what follows a tool that has answered dim. Lines without a mark stay as they are.
func colorLine(line string) string {
	mark, text, _ := strings.Cut(line, " ")
	style := lineStyles[mark]
	if style == "" {
		return line
	}
	mark = style + mark + styleReset + " "
	if style == styleYellow {
		return mark + text
	}
	name, rest, _ := strings.Cut(text, " ")
	if style == styleGreen {
		rest = styleDim + rest + styleReset
	}
	return mark + styleBold + name + styleReset + " " + rest
}

// statusLine is the last line of a terminal, with a spinner, while something is in progress.
type statusLine struct {
	w       io.Writer
	enabled bool
	done    chan struct{}  // closed by close
	drawing sync.WaitGroup // the goroutine that draws

	mu    sync.Mutex // protects what follows, and the order of writes
	text  string     // "": no status line
	frame int        // of the spinner
}

const (
	spinnerFrames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
	spinnerTick   = 100 * time.Millisecond
	eraseLine     = "\r\x1b[K"
)

// newStatusLine returns a status line on w, or one that never draws. The caller must close it.
func newStatusLine(w io.Writer, enabled bool) *statusLine {
	l := &statusLine{w: w, enabled: enabled, done: make(chan struct{})}
	if enabled {
		l.drawing.Go(l.animate)
	}
	return l
}

// animate redraws the spinner until the line is closed.
func (l *statusLine) animate() {
	ticker := time.NewTicker(spinnerTick)
	defer ticker.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-ticker.C:
			l.mu.Lock()
			l.frame++
			l.drawLocked()
			l.mu.Unlock()
		}
	}
}

// set replaces the text of the status line; "" removes the line.
func (l *statusLine) set(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text = plainText(text)
	if l.enabled && l.text != "" && text == "" {
		io.WriteString(l.w, eraseLine)
	}
	l.text = text
	l.drawLocked()
}

// drawLocked draws the line. The caller holds mu.
func (l *statusLine) drawLocked() {
	if !l.enabled || l.text == "" {
		return
	}
	spinner := []rune(spinnerFrames)
	fmt.Fprintf(l.w, "%s%c %s", eraseLine, spinner[l.frame%len(spinner)], l.text)
}

// println prints a line above the status line.
func (l *statusLine) println(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.enabled && l.text != "" {
		io.WriteString(l.w, eraseLine)
	}
	fmt.Fprintln(l.w, line)
	l.drawLocked()
}

// close removes the line and waits for the goroutine that draws it.
func (l *statusLine) close() {
	l.set("")
	close(l.done)
	l.drawing.Wait()
}
