package terminal

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
)

// Styles of a terminal (ECMA-48, Select Graphic Rendition).
const (
	styleReset  = "\x1b[0m"
	styleBold   = "\x1b[1m"
	styleDim    = "\x1b[2m"
	styleItalic = "\x1b[3m"
	styleCode   = "\x1b[36m"
	styleStrike = "\x1b[9m"
	styleGreen  = "\x1b[32m"
	styleRed    = "\x1b[31m"
	styleYellow = "\x1b[33m"
)

const (
	spinnerFrames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
	spinnerTick   = 100 * time.Millisecond
	eraseLine     = "\r\x1b[K"
)

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
	text = PlainText(text)
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

// println prints a line above the status line. All output of a terminal that has a status line must go through it or
// come while the text is "", or the spinner would be drawn into it.
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

// visibleJSON returns JSON with escapes for the characters that PlainText removes, and for those that cannot be seen: a
// person who approves a value must see all of it. They can only be in strings, so it is the same JSON.
func visibleJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		if !unicode.In(r, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp) && (r < 0x7f || !unicode.IsControl(r)) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// PlainText returns text without control characters, other than line feeds and tabs, and without characters that change
// its direction. What models, MCP servers and files of others say must not control the terminal.
func PlainText(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, text)
}

// PlainWriter returns a writer that writes PlainText to w. Each Write must have whole characters.
func PlainWriter(w io.Writer) io.Writer { return plainWriter{w} }

type plainWriter struct{ w io.Writer }

// Write implements io.Writer.
func (p plainWriter) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.w, PlainText(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}
