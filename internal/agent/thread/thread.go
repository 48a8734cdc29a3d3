// Package thread has what one run adds to its thread: the question and what came of it. A log stores
// it as opaque bytes.
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
// A turn has the calls that ended and the text of the model, and nothing that belongs to one provider.
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

// Message is one message of a conversation before a question.
type Message struct {
	Role    string
	Content string
	Media   []llm.Media    `json:",omitempty"` // of the user
	Calls   []llm.ToolCall `json:",omitempty"` // of the assistant
	CallID  string         `json:",omitempty"` // of a tool: the call whose result it is
}

// Turn is what one run adds to its thread.
type Turn struct {
	Version int    `json:"version"`
	Agent   string `json:"agent,omitempty"` // the named agent that answered
	// After is the run whose turn the question follows, if that was not the newest turn; "" otherwise.
	After    string      `json:"after,omitempty"`
	Given    []Message   `json:"given,omitempty"` // came with the request and precede the question, such as results of the caller's tools
	Question string      `json:"question,omitempty"`
	Media    []llm.Media `json:"media,omitempty"` // of the question

	Status  event.Status `json:"status"`
	Asked   int64        `json:"asked"`    // milliseconds since the Unix epoch
	EndedAt int64        `json:"ended_at"` // likewise
	Steps   []Step       `json:"steps,omitempty"`
}

// Step is one answer of the model, and the results of its calls.
type Step struct {
	Text  string `json:"text,omitempty"`
	Calls []Call `json:"calls,omitempty"`
}

// Call is a tool call. It has a Payload or an Error; neither if the caller executes it.
type Call struct {
	CallID   string          `json:"call_id"`
	Tool     string          `json:"tool"`
	Server   string          `json:"server,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"`
	ArgsText string          `json:"args_text,omitempty"` // what the model wrote, if that is no JSON object
	Payload  json.RawMessage `json:"payload,omitempty"`
	Error    *string         `json:"error,omitempty"`

	// Set and used by Builder only; a decoded turn does not have them.
	byClient  bool // the caller executes it
	cancelled bool // it ended because the run was cancelled, or its time was used up
}

// version changes when an older process cannot read the turns of a newer one.
const version = 1

// Decode decodes a turn.
func Decode(data []byte) (t Turn, err error) {
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("decode a turn of a thread: %w", err)
	}
	if t.Version != version {
		return t, fmt.Errorf("a turn of version %d, want %d", t.Version, version)
	}
	return t, nil
}

// Encode returns the turn as JSON of at most event.MaxTurn bytes. It leaves out as little as necessary: files
// first, of which a line of text remains, then parts of results, then parts of texts.
func (t Turn) Encode() []byte {
	t.Version = version
	defer compute.Begin(t.contentSize())()
	if data, ok := t.encodeWithin(event.MaxTurn); ok {
		return data
	}
	t = t.withoutMedia()
	for limit := event.MaxTurn / 4; ; limit /= 4 {
		if data, ok := t.encodeWithin(event.MaxTurn); ok {
			return data
		}
		t = t.shorten(limit)
		if limit < minText {
			t.Given, t.Steps = nil, t.Steps[max(0, len(t.Steps)-1):]
			for i := range t.Steps {
				t.Steps[i].Calls = nil
			}
			return t.encode()
		}
	}
}

// maxAddress is the length up to which Encode keeps the address of an image, in bytes. A request has no bound for it.
const maxAddress = 2 << 10

// minText is the length down to which Encode shortens each text before it leaves out whole calls.
const minText = 256

// encodeWithin returns the turn as JSON if that has at most limit bytes. What certainly has more is not encoded,
// since a run with large results would otherwise occupy a processor for milliseconds.
func (t Turn) encodeWithin(limit int) (data []byte, ok bool) {
	if t.contentSize() > limit {
		return nil, false
	}
	data = t.encode()
	return data, len(data) <= limit
}

// contentSize returns the bytes of the texts, files and results. Their JSON is rarely shorter.
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

// encode returns the turn as encoding/json would. That takes four times as long for a payload of 100 kB, which
// was a sixth of the CPU time of an answer with one.
func (t Turn) encode() []byte {
	data, err := jsonv1.Marshal(t)
	if err != nil { // a payload is not JSON, which no log would have accepted
		t.Steps = nil
		data, _ = jsonv1.Marshal(t)
	}
	return data
}

// withoutMedia returns the turn with a line of text in place of each file that is not a text or an address.
func (t Turn) withoutMedia() Turn {
	t.Question, t.Media = describeMedia(t.Question, t.Media)
	t.Given = slices.Clone(t.Given)
	for i := range t.Given {
		m := &t.Given[i]
		m.Content, m.Media = describeMedia(m.Content, m.Media)
	}
	return t
}

// describeMedia returns a text with the files of a message in it: text files as they are, and a line for each other
// one. Files that are only an address stay as they are, if that is not longer than maxAddress.
func describeMedia(text string, media []llm.Media) (string, []llm.Media) {
	var kept []llm.Media
	for _, m := range media {
		switch {
		case m.URL != "" && len(m.URL) <= maxAddress:
			kept = append(kept, m)
		case m.URL != "":
			text = strings.TrimPrefix(text+"\n[An image was here. Its address is too long to be kept with the conversation.]", "\n")
		case attachment.IsText(m):
			text = strings.TrimPrefix(text+"\n\n"+attachment.Inline(m), "\n\n")
		default:
			text = strings.TrimPrefix(text+"\n"+omittedFileLine(m), "\n")
		}
	}
	return text, kept
}

// omittedFileLine returns the line that remains of a file that is too large for the thread.
func omittedFileLine(m llm.Media) string {
	return fmt.Sprintf("[The file %q of type %s and %d bytes was here. It is too large to be kept with the conversation.]",
		m.Name, m.MIME, base64.StdEncoding.DecodedLen(len(m.Data)))
}

// shorten returns the turn with texts and results of at most limit bytes each.
func (t Turn) shorten(limit int) Turn {
	short := func(text string) string { text, _ = content.TruncateText(text, limit, ""); return text }
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
			c.Payload, c.ArgsText = content.TruncateValue(c.Payload, limit, ""), short(c.ArgsText)
			if len(c.Args) > limit {
				c.Args, c.ArgsText = nil, short(string(c.Args))
			}
			if c.Error != nil {
				text := short(*c.Error)
				c.Error = &text
			}
		}
	}
	return t
}

// Messages returns the turn as messages for the model.
func (t Turn) Messages() []Message {
	out := slices.Clone(t.Given)
	if t.Question != "" || len(t.Media) > 0 {
		out = append(out, Message{Role: string(llm.User), Content: t.Question, Media: t.Media})
	}
	for _, s := range t.Steps {
		if strings.TrimSpace(s.Text) == "" && len(s.Calls) == 0 {
			continue
		}
		m := Message{Role: string(llm.Assistant), Content: s.Text}
		var results []Message
		for i, c := range s.Calls {
			m.Calls = append(m.Calls, llm.ToolCall{Index: i, ID: c.CallID, Name: c.Tool, Arguments: c.arguments()})
			if text, ended := c.result(); ended {
				results = append(results, Message{Role: string(llm.ToolRole), CallID: c.CallID, Content: text})
			}
		}
		out = append(append(out, m), results...)
	}
	return out
}

// Answer returns the text of the last step.
func (t Turn) Answer() string {
	if len(t.Steps) == 0 {
		return ""
	}
	return t.Steps[len(t.Steps)-1].Text
}

// Title returns the title of a thread that begins with a question: its first line that is not blank.
func Title(question string) string {
	for line := range strings.Lines(strings.ToValidUTF8(question, "\uFFFD")) {
		line = strings.TrimSpace(line)
		if line != "" {
			return event.CutTitle(line)
		}
	}
	return ""
}

func (c Call) arguments() string {
	if c.Args != nil {
		return string(c.Args)
	}
	return c.ArgsText
}

// result returns the result of the call as text for the model; false if it has none.
func (c Call) result() (string, bool) {
	if c.Error != nil {
		return "Error: " + *c.Error, true
	}
	if c.Payload == nil {
		return "", false
	}
	var text string
	if json.Unmarshal(c.Payload, &text) == nil {
		return text, true
	}
	return string(c.Payload), true
}
