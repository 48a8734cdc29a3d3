package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"answerd/internal/event"
)

// TestToolLinesHaveColorsOnATerminal shows the events of calls with and without colours.
func TestToolLinesHaveColorsOnATerminal(t *testing.T) {
	add, args := event.Call{Tool: "add"}, json.RawMessage(`{"a":1}`)
	result := event.ToolResult{Call: add, Args: args, DurationMS: 3}
	for _, c := range []struct {
		colors bool
		body   event.Body
		want   string
	}{
		{true, result, "<green>✓</> <b>add</> <dim>{\"a\":1} (3ms)</>\n"},
		{true, event.ToolError{Call: add, Args: args, Kind: "timeout", Payload: "late"}, "<red>✗</> <b>add</> {\"a\":1}: timeout: late\n"},
		{true, event.StepReset{}, "<yellow>!</> another process took over; the last step runs again\n"},
		{true, event.ToolError{Call: event.Call{Tool: "\x1b[31madd"}, Kind: "timeout", Payload: "late"}, "<red>✗</> <b>[31madd</> : timeout: late\n"},
		{false, result, "✓ add {\"a\":1} (3ms)\n"},
	} {
		var out strings.Builder
		s := New(Options{In: strings.NewReader(""), Out: io.Discard, Err: &out, ErrColors: c.colors})
		if err := s.newRunView(question{}).showEvent(event.Event{Body: c.body}); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if got := showStyles.Replace(out.String()); got != c.want {
			t.Errorf("%s: got %q, want %q", c.body.Type(), got, c.want)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// showStyles makes styles visible.
var showStyles = strings.NewReplacer(styleReset, "</>", styleBold, "<b>", styleDim, "<dim>", styleItalic, "<i>", styleCode, "<code>", styleStrike, "<s>", styleGreen, "<green>", styleRed, "<red>", styleYellow, "<yellow>")

func TestMarkdownIsRenderedForTerminals(t *testing.T) {
	for source, want := range map[string]string{
		"# Title\n\nSome *text* and **more**.": "<b>Title</>\n\nSome <i>text</> and <b>more</>.\n",
		"- one\n- two\n  - three":              "• one\n• two\n  • three\n",
		"3. one\n4. two":                       "3. one\n4. two\n",
		"```go\na := 1\nb := 2\n```":           "    <code>a := 1\n    b := 2</>\n",
		"> a\n> b":                             "<dim>│ </>a\n<dim>│ </>b\n",
		"[page](https://example.com) `x`":      "page<dim> (https://example.com)</> <code>x</>\n",
		"| a | bb |\n|---|---|\n| ccc | d |":   "<b>a    bb</>\nccc  d\n",
		"| a | b |\n|---|---|\n| ✅ | 日本 |\n| e\u0301\u200d | xxxx |\n| xx | y |": "<b>a   b</>\n✅  日本\n" + "e\u0301\u200d   xxxx\nxx  y\n",
		"~~old~~ 1 \\* 2 &lt; 3": "<s>old</> 1 * 2 < 3\n",
		"<pre>\na\n</pre> b":     "    <code><pre>\n    a\n    </pre> b</>\n",
		"a <b>c</b>":             "a <b>c</b>\n",
	} {
		if got := showStyles.Replace(renderMarkdown(source)); got != want {
			t.Errorf("%q: got %q, want %q", source, got, want)
		}
	}
}

// The text of a model must not control the terminal, however it writes the control characters.
func TestMarkdownHasNoControlCharacters(t *testing.T) {
	for _, source := range []string{"a\x1b[2Jb", "a&#27;[2Jb", "a&#x9b;2Jb", "a\u202eb", "`a\x1b[2Jb`", "[x](http://a\x07b)", "```\na\x1b]0;title\x07b\n```"} {
		var b strings.Builder
		w := &markdownWriter{w: &b}
		if err := w.write(source); err != nil {
			t.Fatal(err)
		}
		if err := w.end(); err != nil {
			t.Fatal(err)
		}
		plain := showStyles.Replace(b.String())
		if strings.ContainsAny(plain, "\x1b\x07\u009b\u202e") {
			t.Errorf("%q: got %q, want no control characters", source, plain)
		}
	}
}

// The result does not depend on how the text is split into deltas.
func TestMarkdownIsWrittenBlockByBlock(t *testing.T) {
	const source = "one\n\n```\na\n\nb\n```\n\n- x\n- y\n\nlast"
	write := func(deltas ...string) string {
		var b strings.Builder
		w := &markdownWriter{w: &b}
		for _, delta := range deltas {
			if err := w.write(delta); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.end(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}

	want := write(source)
	if got := write(strings.Split(source, "")...); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var b strings.Builder
	w := &markdownWriter{w: &b}
	if err := w.write("one\n\ntwo"); err != nil || b.String() != "one\n" {
		t.Errorf("got %q, %v after the first block, want it alone", b.String(), err)
	}
	if got, want := write("See [a][1].\n\n", "[1]: https://example.com/a"), "See [a][1].\n\n[1]: https://example.com/a\n"; got != want {
		t.Errorf("got %q for a link and its definition, want %q", got, want)
	}
}

// Fenced code is one block, whatever is in it.
func TestMarkdownBlockEndsWithItsOwnFence(t *testing.T) {
	for _, code := range []string{
		"````md\n```\n\nb\n````",
		"~~~~\n~~~\n\nb\n~~~~",
		"```md\n~~~\n\nb\n```",
		"```\n```go\n\nb\n```",
		"```\na\n\nb\n`````",
		"~~~ `x`\na\n\nb\n~~~",
	} {
		var b strings.Builder
		w := &markdownWriter{w: &b}
		if err := w.write(code + "\n\nlast"); err != nil {
			t.Fatal(err)
		}
		if got, want := b.String(), renderMarkdown(code); got != want {
			t.Errorf("%q: got %q as the first block, want %q", code, got, want)
		}
	}
	var b strings.Builder
	w := &markdownWriter{w: &b}
	if err := w.write("```a``` is code.\n\nlast"); err != nil || b.String() != renderMarkdown("```a``` is code.") {
		t.Errorf("got %q, %v as the first block, want the line without the last one", b.String(), err)
	}
}

func FuzzMarkdown(f *testing.F) {
	f.Add("# a\n\n- b\n\n| c |\n|---|\n| d |")
	f.Add("```\n&#27;[2J")
	f.Fuzz(func(t *testing.T, source string) {
		plain := showStyles.Replace(renderMarkdown(PlainText(source)))
		if strings.ContainsRune(plain, '\x1b') {
			t.Errorf("%q: got %q, want no escape", source, plain)
		}
	})
}

func Example() {
	fmt.Print(renderMarkdown("1. first\n2. second"))
	// Output:
	// 1. first
	// 2. second
}
