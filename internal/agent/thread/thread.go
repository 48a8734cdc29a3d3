// Package thread defines the turn that a run adds to its thread, and reads and repairs the turns in the log (Store). A
// turn is a run's question and its steps. The log stores turns as opaque bytes.
//
//	var b thread.Builder
//	b.Add(e.Body) // each event of the run
//	turn := b.Turn(end)
//	turn.Question, turn.Media = question, media
//	data := turn.Encode()
//	...
//	turn, err := thread.Decode(data)
//	messages := turn.Messages() // for the model of the next run
//
// A turn contains the model's texts and the calls that ended, but nothing that only one provider understands.
package thread

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	jsonv1 "github.com/go-json-experiment/json/v1"

	"answerd/internal/agent/attachment"
	"answerd/internal/compute"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp/content"
)

// Message is one message of a conversation, before the question.
type Message struct {
	Role    string
	Content string
	Media   []llm.Media    `json:",omitempty"` // from the user
	Calls   []llm.ToolCall `json:",omitempty"` // from the assistant
	CallID  string         `json:",omitempty"` // in a result: the id of its call
}

// Turn is what one run adds to its thread.
type Turn struct {
	Version int    `json:"version"`
	Agent   string `json:"agent,omitempty"` // the id of the named agent that answered
	// After is the run whose turn the question follows; "" if that is the newest turn.
	After string `json:"after,omitempty"`
	// Given are the request's messages before the question, such as results of the API client's tools.
	Given    []Message   `json:"given,omitempty"`
	Question string      `json:"question,omitempty"`
	Media    []llm.Media `json:"media,omitempty"` // belongs to the question

	Status  event.Status `json:"status"`
	Asked   int64        `json:"asked"`    // milliseconds since the Unix epoch
	EndedAt int64        `json:"ended_at"` // milliseconds since the Unix epoch
	Steps   []Step       `json:"steps,omitempty"`
}

// Step is one answer of the model, with its calls and their results.
type Step struct {
	Text  string `json:"text,omitempty"`
	Calls []Call `json:"calls,omitempty"`
}

// Call is a tool call, with either a Payload or an Error. It has neither if the API client executes it: its result is
// then in the next turn's Given.
type Call struct {
	CallID   string          `json:"call_id"`
	Tool     string          `json:"tool"`
	Server   string          `json:"server,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"`
	ArgsText string          `json:"args_text,omitempty"` // the arguments as text, if Args is nil
	Payload  json.RawMessage `json:"payload,omitempty"`
	Error    *string         `json:"error,omitempty"`

	// Only Builder sets and uses these; they are not stored.
	byClient  bool // the API client executes it
	cancelled bool // the call ended because the run was cancelled or its time was used up
}

// version changes when older processes can no longer read the turns of newer ones.
const version = 1

// Decode decodes a turn that Encode encoded. It returns an error if the turn has another version.
func Decode(data []byte) (t Turn, err error) {
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("decode a turn of a thread: %w", err)
	}
	if t.Version != version {
		return t, fmt.Errorf("a turn of version %d, want %d", t.Version, version)
	}
	return t, nil
}

// Encode returns the turn as JSON of at most event.MaxTurn bytes. If the turn is larger, Encode first replaces each
// file by a line of text. Then it cuts texts, arguments and results, shorter each time, until they have about minText
// bytes. Finally it keeps only the question and the last step's text. For a large turn, Encode may wait until the
// process has capacity for the work (compute.Begin).
func (t Turn) Encode() []byte {
	t.Version = version
	defer compute.Begin(t.contentSize())()
	if data, fits := t.encodeIfFits(); fits {
		return data
	}
	t = t.withoutMedia()
	for limit := event.MaxTurn / 4; ; limit /= 4 {
		if data, fits := t.encodeIfFits(); fits {
			return data
		}
		if limit < minText {
			break
		}
		t = t.shorten(limit)
	}
	// The turn has too many messages, steps or calls, however short they are.
	t = t.shorten(minText / 2)
	t.Given = nil
	t.Steps = t.Steps[max(0, len(t.Steps)-1):]
	for i := range t.Steps {
		t.Steps[i].Calls = nil
	}
	return t.encode()
}

// maxAddress is how long, in bytes, an image's address may be for Encode to keep it. Requests do not limit it.
const maxAddress = 2 << 10

// minText is the shortest length to which Encode cuts texts, before it leaves out whole calls.
const minText = 256

// encodeIfFits returns the turn as JSON. fits is false if that would exceed event.MaxTurn. If contentSize alone exceeds
// it, the turn is not encoded, because encoding large results would occupy a processor for milliseconds.
func (t Turn) encodeIfFits() (data []byte, fits bool) {
	if t.contentSize() > event.MaxTurn {
		return nil, false
	}
	data = t.encode()
	return data, len(data) <= event.MaxTurn
}

// contentSize returns how many bytes of texts, files, arguments and results the turn has. Its JSON is rarely shorter.
func (t Turn) contentSize() int {
	n := len(t.Question)
	for _, m := range t.Media {
		n += len(m.Data)
	}
	for _, g := range t.Given {
		n += len(g.Content)
		for _, m := range g.Media {
			n += len(m.Data)
		}
	}
	for _, s := range t.Steps {
		n += len(s.Text)
		for _, c := range s.Calls {
			n += len(c.Args) + len(c.ArgsText) + len(c.Payload)
		}
	}
	return n
}

// encode returns the turn as JSON. It avoids encoding/json, which takes four times as long for a payload of 100 kB;
// that was a sixth of the CPU time of an answer with such a payload.
func (t Turn) encode() []byte {
	data, err := jsonv1.Marshal(t)
	if err != nil { // a payload is not JSON, which cannot happen, since the log refuses such events
		t.Steps = nil
		data, _ = jsonv1.Marshal(t)
	}
	return data
}

// withoutMedia returns the turn with its files, in the question and in Given, replaced by text (describeMedia). It does
// not change t.Given.
func (t Turn) withoutMedia() Turn {
	t.Question, t.Media = describeMedia(t.Question, t.Media)
	t.Given = slices.Clone(t.Given)
	for i := range t.Given {
		m := &t.Given[i]
		m.Content, m.Media = describeMedia(m.Content, m.Media)
	}
	return t
}

// describeMedia returns text with a message's files appended: text files in full, and one line for each other file.
// kept has the files that are not in the text: images given by an address of at most maxAddress bytes.
func describeMedia(text string, media []llm.Media) (described string, kept []llm.Media) {
	for _, m := range media {
		switch {
		case m.URL != "" && len(m.URL) <= maxAddress:
			kept = append(kept, m)
		case m.URL != "":
			text = join(text, "\n", "[An image was here. Its address is too long to be kept with the conversation.]")
		case attachment.IsText(m):
			text = join(text, "\n\n", attachment.Inline(m))
		default:
			text = join(text, "\n", omittedFileLine(m))
		}
	}
	return text, kept
}

// join returns text, separator and addition, but without a separator at the beginning.
func join(text, separator, addition string) string {
	return strings.TrimPrefix(text+separator+addition, separator)
}

// omittedFileLine returns the line that replaces a file which is too large for the thread.
func omittedFileLine(media llm.Media) string {
	return fmt.Sprintf("[The file %q of type %s and %d bytes was here. It is too large to be kept with the conversation.]",
		media.Name, media.MIME, base64.StdEncoding.DecodedLen(len(media.Data)))
}

// shorten returns the turn with each text, argument and result cut to limit bytes, plus a note in each that was cut.
// Cut arguments are no longer JSON, so they become ArgsText. shorten does not change t.
func (t Turn) shorten(limit int) Turn {
	short := func(text string) string {
		text, _ = content.TruncateText(text, limit, "")
		return text
	}
	t.Question = short(t.Question)
	t.Given = slices.Clone(t.Given)
	for i := range t.Given {
		t.Given[i].Content = short(t.Given[i].Content)
	}
	t.Steps = slices.Clone(t.Steps)
	for i := range t.Steps {
		s := &t.Steps[i]
		s.Text, s.Calls = short(s.Text), slices.Clone(s.Calls)
		for j := range s.Calls {
			c := &s.Calls[j]
			c.Payload = content.TruncateValue(c.Payload, limit, "")
			c.ArgsText = short(c.ArgsText)
			if len(c.Args) > limit {
				c.ArgsText = short(string(c.Args))
				c.Args = nil
			}
			if c.Error != nil {
				text := short(*c.Error)
				c.Error = &text
			}
		}
	}
	return t
}

// Messages returns the turn as messages for the model: Given, the question, and then for each step the model's answer,
// followed by the results of its calls.
func (t Turn) Messages() []Message {
	out := slices.Clone(t.Given)
	if t.Question != "" || len(t.Media) > 0 {
		out = append(out, Message{Role: string(llm.User), Content: t.Question, Media: t.Media})
	}
	for _, s := range t.Steps {
		if strings.TrimSpace(s.Text) == "" && len(s.Calls) == 0 {
			continue
		}
		answer := Message{Role: string(llm.Assistant), Content: s.Text}
		var results []Message
		for i, c := range s.Calls {
			answer.Calls = append(answer.Calls, llm.ToolCall{Index: i, ID: c.CallID, Name: c.Tool, Arguments: c.arguments()})
			if c.hasResult() {
				results = append(results, Message{Role: string(llm.ToolRole), CallID: c.CallID, Content: c.resultText()})
			}
		}
		out = append(out, answer)
		out = append(out, results...)
	}
	return out
}

// Answer returns the last step's text, or "" if there are no steps.
func (t Turn) Answer() string {
	if len(t.Steps) == 0 {
		return ""
	}
	return t.Steps[len(t.Steps)-1].Text
}

// Title returns the title of a thread that begins with question: the question's first line that is not blank, cut if it
// is too long.
func Title(question string) string {
	for line := range strings.Lines(strings.ToValidUTF8(question, "\uFFFD")) {
		line = strings.TrimSpace(line)
		if line != "" {
			return event.CutTitle(line)
		}
	}
	return ""
}

// arguments returns the call's arguments as text for the model.
func (c Call) arguments() string {
	if c.Args != nil {
		return string(c.Args)
	}
	return c.ArgsText
}

// hasResult reports whether the call has a result or an error.
func (c Call) hasResult() bool { return c.Payload != nil || c.Error != nil }

// resultText returns the call's result or error as text for the model: a result that is a JSON string without quotes,
// and any other result as JSON. The call must have one of them.
func (c Call) resultText() (text string) {
	if c.Error != nil {
		return "Error: " + *c.Error
	}
	if json.Unmarshal(c.Payload, &text) == nil {
		return text
	}
	return string(c.Payload)
}

// IDRule describes the ids that IsID accepts, for the error messages of API formats.
const IDRule = "must be 1 to 128 visible ASCII characters, and not . or .."

// IsID reports whether s may be the id of a thread in a request. Because ids appear in logs, headers and URLs, they
// must be visible ASCII. They must not be . or .., because clients remove such path segments (RFC 3986, section 5.2.4).
func IsID(s string) bool {
	isHidden := func(r rune) bool { return r <= ' ' || r > '~' }
	return s != "" && len(s) <= 128 && !strings.ContainsFunc(s, isHidden) && s != "." && s != ".."
}
