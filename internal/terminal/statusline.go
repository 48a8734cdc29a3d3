package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
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

// statusLine is a line with a spinner at the bottom of a terminal. It is shown while something is in progress.
type statusLine struct {
	w       io.Writer
	enabled bool           // false if w cannot erase a line; the line is then never shown
	done    chan struct{}  // closed by close
	drawing sync.WaitGroup // lets close wait for the goroutine of animate

	mu    sync.Mutex // protects the fields below; held during writes to w
	text  string     // "" if the line is not shown
	frame int        // number of ticks so far; selects the spinner's character
}

// newStatusLine returns a status line on w. It is hidden until set is called, and always if enabled is false. The
// caller must close it.
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

// set replaces the text of the status line. "" hides the line.
func (l *statusLine) set(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text = PlainText(text)
	if l.enabled && l.text != "" && text == "" { // drawLocked erases the line only to show another text
		io.WriteString(l.w, eraseLine)
	}
	l.text = text
	l.drawLocked()
}

// drawLocked redraws the status line if it is shown. The caller must hold l.mu.
func (l *statusLine) drawLocked() {
	if !l.enabled || l.text == "" {
		return
	}
	spinner := []rune(spinnerFrames)
	line := fmt.Sprintf("%c %s", spinner[l.frame%len(spinner)], l.text)
	if file, ok := l.w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil {
			line = cutColumns(line, columns)
		}
	}
	io.WriteString(l.w, eraseLine+line)
}

// cutColumns returns the beginning of line that fits into fewer than columns columns. The terminal would wrap a longer
// line, and eraseLine erases only the last row. It returns the whole line if columns is 0, for an unknown width.
func cutColumns(line string, columns int) string {
	if columns == 0 {
		return line
	}
	for i, r := range line {
		if visibleWidth(line[:i+utf8.RuneLen(r)]) >= columns {
			return line[:i]
		}
	}
	return line
}

// println prints a line above the status line. While the status line is shown, all output to the terminal must use
// println, because the spinner would overwrite other output.
func (l *statusLine) println(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.enabled && l.text != "" {
		io.WriteString(l.w, eraseLine)
	}
	fmt.Fprintln(l.w, line)
	l.drawLocked()
}

// close hides the line and waits for the goroutine that draws it.
func (l *statusLine) close() {
	l.set("")
	close(l.done)
	l.drawing.Wait()
}

// markStyles maps the mark at the start of a line to a style. The marks stand for a successful call, a failed call, and
// a warning.
var markStyles = map[string]string{"✓": styleGreen, "✗": styleRed, "!": styleYellow}

// colorLine adds styles to a line that begins with a mark of markStyles. It colours the mark. In the line of a call it
// also makes the tool's name bold, and the rest dim if the call succeeded. It returns lines without a mark unchanged.
func colorLine(line string) string {
	mark, text, _ := strings.Cut(line, " ")
	style := markStyles[mark]
	if style == "" {
		return line
	}
	mark = style + mark + styleReset + " "
	if style == styleYellow { // a warning does not begin with a tool's name
		return mark + text
	}
	name, rest, _ := strings.Cut(text, " ")
	if style == styleGreen {
		rest = styleDim + rest + styleReset
	}
	return mark + styleBold + name + styleReset + " " + rest
}

// visibleJSON replaces characters that PlainText removes, and other invisible characters, with \u escapes. A user who
// approves arguments must see all of them. Valid JSON has such characters only inside of strings, so the result has the
// same meaning.
func visibleJSON(text string) string {
	var b strings.Builder
	for _, r := range text {
		isControl := r >= 0x7f && unicode.IsControl(r) // below that only line feeds and tabs, between members
		if !isControl && !unicode.In(r, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp) {
			b.WriteRune(r)
			continue
		}
		for _, codeUnit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, codeUnit)
		}
	}
	return b.String()
}

// PlainText returns text without control characters except line feeds and tabs, and without characters that change the
// direction of text. Otherwise text from models, MCP servers and files of others could control the terminal.
func PlainText(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, text)
}

// PlainWriter returns a writer that writes to w and applies PlainText to each Write. A Write must not end in the middle
// of a UTF-8 character.
func PlainWriter(w io.Writer) io.Writer { return plainWriter{w} }

type plainWriter struct{ w io.Writer }

// Write implements io.Writer.
func (p plainWriter) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.w, PlainText(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}
