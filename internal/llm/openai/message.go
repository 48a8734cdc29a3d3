package openai

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"answerd/internal/llm"

	"github.com/go-json-experiment/json/jsontext"
)

// wirePart holds one part of a user's message: text, an image, audio or a file.
type wirePart struct {
	Type  string     `json:"type"`
	Text  string     `json:"text,omitempty"`
	Image *wireImage `json:"image_url,omitempty"`
	Audio *wireAudio `json:"input_audio,omitempty"`
	File  *wireFile  `json:"file,omitempty"`
}

// wireFile, wireImage and wireAudio are the objects of parts that are not text. Their content is base64:
// in a data: URL for files and images, and alone for audio. An image may be the URL of one instead.
type wireFile struct {
	Name string `json:"filename"`
	Data string `json:"file_data"`
}

type wireImage struct {
	URL    string `json:"url"`
	Detail string `json:"detail,omitempty"`
}

type wireAudio struct {
	Data   string `json:"data"`
	Format string `json:"format"`
}

// appendMessages appends messages in the form of the request. In Chat Completions, a message of
// the role tool has text only, so the media of results follow in a message of the user. That
// message comes after all results of the turn, because endpoints require results directly after
// their calls.
func appendMessages(out []wireMessage, messages []llm.Message, endpoint string) []wireMessage {
	var media []llm.Media // of the results since the last message of another role
	for i, m := range messages {
		if isEmptyAnswer(m) {
			continue
		}
		out = append(out, newWireMessage(m, endpoint))
		if m.Role != llm.ToolRole {
			continue
		}
		media = append(media, m.Media...)
		if last := i+1 == len(messages) || messages[i+1].Role != llm.ToolRole; last && len(media) > 0 {
			out = append(out, newWireMessage(llm.Message{Role: llm.User, Media: media}, endpoint))
			media = nil
		}
	}
	return out
}

// isEmptyAnswer reports whether m is an answer that says nothing, which Mistral and Anthropic refuse.
func isEmptyAnswer(m llm.Message) bool {
	hasParts := m.Extensions != nil && m.Extensions.Content != nil
	saysNothing := strings.TrimSpace(m.Text) == "" && len(m.Calls) == 0 && !hasParts
	return m.Role == llm.Assistant && saysNothing
}

// withoutImages returns messages with a line of text in place of each image.
func withoutImages(messages []llm.Message) []llm.Message {
	out := slices.Clone(messages)
	for i := range out {
		message := &out[i]
		if !slices.ContainsFunc(message.Media, isImage) {
			continue
		}
		var kept []llm.Media
		for _, media := range message.Media {
			if !isImage(media) {
				kept = append(kept, media)
				continue
			}
			what := "An image"
			if media.MIME != "" {
				what += fmt.Sprintf(" (%s, %d bytes)", media.MIME, base64.RawStdEncoding.DecodedLen(len(strings.TrimRight(media.Data, "="))))
			}
			line := strings.TrimSpace(fmt.Sprintf("%s [%s was here, which this model cannot take.]", media.Label, what))
			message.Text = strings.TrimSpace(message.Text + "\n" + line)
		}
		message.Media = kept
	}
	return out
}

// isImage reports whether p is an image. One with an address has no type.
func isImage(p llm.Media) bool { return p.URL != "" || p.IsImage() }

// newWireParts returns a user's message with media, each after its label.
func newWireParts(m llm.Message) []wirePart {
	parts := make([]wirePart, 0, 1+2*len(m.Media))
	if m.Text != "" {
		parts = append(parts, wirePart{Type: "text", Text: m.Text})
	}
	for _, media := range m.Media {
		if media.Label != "" {
			parts = append(parts, wirePart{Type: "text", Text: media.Label})
		}
		format, isAudio := strings.CutPrefix(media.MIME, "audio/")
		switch {
		case media.URL != "":
			parts = append(parts, wirePart{Type: "image_url", Image: &wireImage{media.URL, media.Detail}})
		case media.MIME == "application/pdf":
			parts = append(parts, wirePart{Type: "file", File: &wireFile{cmp.Or(media.Name, "document.pdf"), "data:" + media.MIME + ";base64," + media.Data}})
		case !isAudio:
			parts = append(parts, wirePart{Type: "image_url", Image: &wireImage{"data:" + media.MIME + ";base64," + media.Data, media.Detail}})
		case format == "mpeg":
			parts = append(parts, wirePart{Type: "input_audio", Audio: &wireAudio{media.Data, "mp3"}})
		default:
			parts = append(parts, wirePart{Type: "input_audio", Audio: &wireAudio{media.Data, format}})
		}
	}
	return parts
}

// Nearly all of a request is the conversation, which is encoded again for every turn. So it is
// appended to one buffer; encoding/json would copy it twice more.

// encodedSize estimates the size of w as JSON, in bytes.
func (w *wireMessage) encodedSize() int {
	n := 96 + len(w.ToolCallID) + len(w.Extensions)
	if text, ok := w.Content.(string); ok {
		n += len(text) + len(text)/16
	} else if parts, ok := w.Content.(json.RawMessage); ok {
		n += len(parts)
	}
	for _, c := range w.ToolCalls {
		n += len(c.ID) + len(c.Function.Name) + len(c.Function.Arguments)*5/4 + len(c.Extensions) + 96
	}
	return n
}

// appendJSON appends w as JSON.
func (w *wireMessage) appendJSON(buf []byte) ([]byte, error) {
	buf = appendQuoted(append(buf, `{"role":`...), string(w.Role))
	buf = append(buf, `,"content":`...)

	switch content := w.Content.(type) {
	case nil:
		buf = append(buf, "null"...)
	case string:
		buf = appendQuoted(buf, content)
	case json.RawMessage:
		buf = append(buf, content...)
	default: // a list of parts, of which the large ones are base64
		raw, err := json.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("encode a message: %w", err)
		}
		buf = append(buf, raw...)
	}

	for i, c := range w.ToolCalls {
		if i == 0 {
			buf = append(buf, `,"tool_calls":[`...)
		} else {
			buf = append(buf, ',')
		}
		buf = appendQuoted(append(buf, `{"id":`...), c.ID)
		buf = appendQuoted(append(buf, `,"type":`...), c.Type)
		buf = appendQuoted(append(buf, `,"function":{"name":`...), c.Function.Name)
		buf = append(appendQuoted(append(buf, `,"arguments":`...), c.Function.Arguments), '}')
		buf = append(appendMembers(buf, c.Extensions), '}')
	}

	if len(w.ToolCalls) > 0 {
		buf = append(buf, ']')
	}
	if w.ToolCallID != "" {
		buf = appendQuoted(append(buf, `,"tool_call_id":`...), w.ToolCallID)
	}
	return append(appendMembers(buf, w.Extensions), '}'), nil
}

// appendMembers appends the members of an object to an open object that already has members.
func appendMembers(b []byte, object json.RawMessage) []byte {
	if len(object) <= len("{}") || object[0] != '{' {
		return b
	}
	return append(append(b, ','), object[1:len(object)-1]...)
}

// appendQuoted appends s as a JSON string. Invalid UTF-8 becomes U+FFFD; AppendQuote has no
// other error.
func appendQuoted(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// laxJSON accepts everything that fits the JSON grammar. Duplicate names and invalid UTF-8 in
// the text of a server or a model are neither changed nor refused.
var laxJSON = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// wireMessage holds one message. Content is a text, a list of wirePart, the parts of an answer as
// JSON, or nil since an assistant that only calls tools must say null: several endpoints refuse an empty text
// there.
type wireMessage struct {
	Role       llm.Role
	Content    any
	ToolCalls  []wireCall
	ToolCallID string
	Extensions json.RawMessage // a JSON object; nil if there are none
}

// wireCall and wireFunction encode a call in an assistant's message. Arguments is JSON within a
// string.
type wireCall struct {
	ID       string
	Type     string
	Function wireFunction

	Extensions json.RawMessage // a JSON object; nil if there are none
}

type wireFunction struct {
	Name      string
	Arguments string
}

// newWireMessage converts a message to its form in the request. A text of white space alone is not sent, because
// some endpoints refuse that. Members that came from another endpoint are omitted.
func newWireMessage(message llm.Message, endpoint string) wireMessage {
	decoded := wireMessage{Role: message.Role, Content: message.Text}
	switch {
	case message.Role == llm.User && len(message.Media) > 0:
		decoded.Content = newWireParts(message)
	case message.Role == llm.ToolRole:
		decoded.ToolCallID = message.CallID
		if strings.TrimSpace(message.Text) == "" {
			decoded.Content = "(no content)"
		}
	case message.Role == llm.Assistant && len(message.Calls) > 0:
		if strings.TrimSpace(message.Text) == "" {
			decoded.Content = nil
		}
		decoded.ToolCalls = make([]wireCall, len(message.Calls))
		for i, c := range message.Calls {
			decoded.ToolCalls[i] = wireCall{ID: c.ID, Type: "function",
				Function: wireFunction{Name: cleanToolName(c.Name), Arguments: cleanArguments(c.Arguments)}}
		}
	}
	if x := message.Extensions; x != nil && message.Role == llm.Assistant && x.Endpoint == endpoint {
		decoded.Extensions = x.Message
		if x.Content != nil {
			decoded.Content = x.Content
		}
		for i := range min(len(x.Calls), len(decoded.ToolCalls)) {
			decoded.ToolCalls[i].Extensions = x.Calls[i]
		}
	}
	return decoded
}

// cleanToolName returns a name of a call that endpoints accept. A model may have called a tool
// that does not exist, by a name that no endpoint accepts in a request (^[A-Za-z0-9_-]{1,64}$).
// Sending that name back would make every later request of the conversation fail.
func cleanToolName(name string) string {
	clean := []byte(name[:min(len(name), 64)])
	for i, c := range clean {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-':
		default:
			clean[i] = '_'
		}
	}
	if len(clean) == 0 {
		return "tool"
	}
	return string(clean)
}

// cleanArguments returns arguments of a call that endpoints accept. Endpoints with a chat
// template parse the arguments and refuse the whole request if they are not an object. Anything
// else is therefore wrapped in an object.
func cleanArguments(raw string) string {
	if raw == "" {
		return "{}"
	}
	if v := jsontext.Value(raw); v.Kind() == '{' && v.IsValid(laxJSON...) {
		return raw
	}
	return string(append(appendQuoted([]byte(`{"invalid_arguments":`), raw), '}'))
}
