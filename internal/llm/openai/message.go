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

// wirePart is one part of a user message. Type says whether it is text, an image, audio or a file.
type wirePart struct {
	Type  string     `json:"type"`
	Text  string     `json:"text,omitempty"`
	Image *wireImage `json:"image_url,omitempty"`
	Audio *wireAudio `json:"input_audio,omitempty"`
	File  *wireFile  `json:"file,omitempty"`
}

// wireFile, wireImage and wireAudio are the objects in parts that are not text. Their content is base64, in a data: URL
// for files and images, and alone for audio. An image may have an https URL instead of content.
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

// newWireMessages converts messages to their form in a request to endpoint (see newWireMessage). It leaves out empty
// answers. In Chat Completions, a message with the role tool can only have text, so the media of tool results follow in
// an additional user message. That message comes after all results of the turn, because endpoints require results
// directly after their calls.
func newWireMessages(messages []llm.Message, endpoint string) []wireMessage {
	out := make([]wireMessage, 0, len(messages))
	var media []llm.Media // of the tool results since the last message with another role
	for i, m := range messages {
		if isEmptyAnswer(m) {
			continue
		}
		out = append(out, newWireMessage(m, endpoint))
		if m.Role != llm.ToolRole {
			continue
		}
		media = append(media, m.Media...)
		isLastResult := i+1 == len(messages) || messages[i+1].Role != llm.ToolRole
		if isLastResult && len(media) > 0 {
			out = append(out, newWireMessage(llm.Message{Role: llm.User, Media: media}, endpoint))
			media = nil
		}
	}
	return out
}

// isEmptyAnswer reports whether message is an answer without text, calls and parts. Mistral and Anthropic refuse such
// messages.
func isEmptyAnswer(message llm.Message) bool {
	hasParts := message.Extensions != nil && message.Extensions.Content != nil
	return message.Role == llm.Assistant && strings.TrimSpace(message.Text) == "" && len(message.Calls) == 0 && !hasParts
}

// withoutImages returns a copy of messages in which each image is replaced with its describeImage, on a new line after
// the message's text.
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
			message.Text = strings.TrimSpace(message.Text + "\n" + describeImage(media))
		}
		message.Media = kept
	}
	return out
}

// describeImage returns the text that a model gets in place of an image that it does not take: the image's label and,
// if they are known, its type and size.
func describeImage(image llm.Media) string {
	description := "An image"
	if image.MIME != "" {
		size := base64.RawStdEncoding.DecodedLen(len(strings.TrimRight(image.Data, "=")))
		description += fmt.Sprintf(" (%s, %d bytes)", image.MIME, size)
	}
	return strings.TrimSpace(fmt.Sprintf("%s [%s was here, which this model cannot take.]", image.Label, description))
}

// isImage reports whether media is an image, either as content or as a URL. Media with a URL are always images, and
// have no MIME type.
func isImage(media llm.Media) bool { return media.URL != "" || media.IsImage() }

// newWireParts returns the parts of a user message with media: the text, and then each media item after its label.
func newWireParts(message llm.Message) []wirePart {
	parts := make([]wirePart, 0, 1+2*len(message.Media))
	if message.Text != "" {
		parts = append(parts, wirePart{Type: "text", Text: message.Text})
	}
	for _, media := range message.Media {
		if media.Label != "" {
			parts = append(parts, wirePart{Type: "text", Text: media.Label})
		}
		parts = append(parts, newMediaPart(media))
	}
	return parts
}

// newMediaPart returns the part for one media item. Anything that is neither PDF nor audio is sent as an image.
func newMediaPart(media llm.Media) wirePart {
	format, isAudio := strings.CutPrefix(media.MIME, "audio/")
	if format == "mpeg" {
		format = "mp3" // the format's name in Chat Completions
	}
	switch {
	case media.URL != "":
		return wirePart{Type: "image_url", Image: &wireImage{URL: media.URL, Detail: media.Detail}}
	case media.MIME == "application/pdf":
		return wirePart{Type: "file", File: &wireFile{Name: cmp.Or(media.Name, "document.pdf"), Data: dataURL(media)}}
	case isAudio:
		return wirePart{Type: "input_audio", Audio: &wireAudio{Data: media.Data, Format: format}}
	default:
		return wirePart{Type: "image_url", Image: &wireImage{URL: dataURL(media), Detail: media.Detail}}
	}
}

// dataURL returns the content of media as a data: URL.
func dataURL(media llm.Media) string { return "data:" + media.MIME + ";base64," + media.Data }

// Nearly all of a request is the conversation, which is encoded again for every turn. So the messages are appended to
// one buffer. encoding/json would copy them two more times.

// encodedSize estimates the size of w as JSON, in bytes. It does not count the parts of a user message.
func (w *wireMessage) encodedSize() int {
	const names = 96 // the names of members, brackets and quotes of a message or a call
	size := names + len(w.ToolCallID) + len(w.Extensions)
	switch content := w.Content.(type) {
	case string:
		size += len(content) + len(content)/16 // a few escapes
	case json.RawMessage:
		size += len(content)
	}
	for _, c := range w.ToolCalls {
		arguments := len(c.Arguments) * 5 / 4 // JSON within a string has many escaped quotes
		size += names + len(c.ID) + len(c.Name) + arguments + len(c.Extensions)
	}
	return size
}

// appendJSON appends the JSON of w to buf and returns the extended slice. It returns an error if the parts of w.Content
// cannot be encoded.
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

	buf = appendCalls(buf, w.ToolCalls)
	if w.ToolCallID != "" {
		buf = appendQuoted(append(buf, `,"tool_call_id":`...), w.ToolCallID)
	}
	return append(appendMembers(buf, w.Extensions), '}'), nil
}

// appendCalls appends the member tool_calls to buf, which must end inside a JSON object that already has members. It
// appends nothing if calls is empty.
func appendCalls(buf []byte, calls []wireCall) []byte {
	if len(calls) == 0 {
		return buf
	}
	buf = append(buf, `,"tool_calls":[`...)
	for i, c := range calls {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = appendQuoted(append(buf, `{"id":`...), c.ID)
		buf = appendQuoted(append(buf, `,"type":"function","function":{"name":`...), c.Name)
		buf = appendQuoted(append(buf, `,"arguments":`...), c.Arguments)
		buf = append(appendMembers(append(buf, '}'), c.Extensions), '}')
	}
	return append(buf, ']')
}

// appendMembers appends the members of object to buf, which must end inside a JSON object that already has members. It
// appends nothing if object is empty or not an object.
func appendMembers(buf []byte, object json.RawMessage) []byte {
	if len(object) <= len("{}") || object[0] != '{' {
		return buf
	}
	return append(append(buf, ','), object[1:len(object)-1]...)
}

// appendQuoted appends text as a JSON string. Invalid UTF-8 becomes U+FFFD, so the error of AppendQuote can be ignored.
func appendQuoted(buf []byte, text string) []byte {
	buf, _ = jsontext.AppendQuote(buf, text)
	return buf
}

// laxJSON are options that accept everything that fits the JSON grammar, so that duplicate names and invalid UTF-8 in
// the JSON of a server or a model are neither changed nor refused.
var laxJSON = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// wireMessage is one message of a request.
type wireMessage struct {
	Role llm.Role
	// Content is a string, a []wirePart, or the parts of an answer as a json.RawMessage. It is nil, which is sent as
	// null, if an assistant message has only calls, because several endpoints refuse an empty text there.
	Content    any
	ToolCalls  []wireCall
	ToolCallID string          // the call whose result a message with the role tool has
	Extensions json.RawMessage // an object with additional members of the message; nil for none
}

// wireCall is a call in an assistant message.
type wireCall struct {
	ID         string
	Name       string
	Arguments  string          // JSON, which is sent within a JSON string
	Extensions json.RawMessage // an object with additional members of the call; nil for none
}

// newWireMessage converts a message to its form in a request to the endpoint with the id endpoint. It omits extensions
// that came from another endpoint. Where endpoints refuse text that is only white space, it replaces the text: with
// null if the message has calls, and with "(no content)" in a result.
func newWireMessage(message llm.Message, endpoint string) wireMessage {
	wire := wireMessage{Role: message.Role, Content: message.Text}
	switch {
	case message.Role == llm.User && len(message.Media) > 0:
		wire.Content = newWireParts(message)
	case message.Role == llm.ToolRole:
		wire.ToolCallID = message.CallID
		if strings.TrimSpace(message.Text) == "" {
			wire.Content = "(no content)"
		}
	case message.Role == llm.Assistant && len(message.Calls) > 0:
		if strings.TrimSpace(message.Text) == "" {
			wire.Content = nil
		}
		wire.ToolCalls = make([]wireCall, len(message.Calls))
		for i, c := range message.Calls {
			wire.ToolCalls[i] = wireCall{ID: c.ID, Name: cleanToolName(c.Name), Arguments: cleanArguments(c.Arguments)}
		}
	}
	extensions := message.Extensions
	if extensions == nil || message.Role != llm.Assistant || extensions.Endpoint != endpoint {
		return wire
	}
	wire.Extensions = extensions.Message
	if extensions.Content != nil {
		wire.Content = extensions.Content
	}
	for i := range min(len(extensions.Calls), len(wire.ToolCalls)) {
		wire.ToolCalls[i].Extensions = extensions.Calls[i]
	}
	return wire
}

// cleanToolName returns name in a form that endpoints accept (^[A-Za-z0-9_-]{1,64}$). It cuts the name to 64 bytes and
// replaces all other bytes with "_". An empty name becomes "tool". A model may have called a tool that does not exist,
// with a name that no endpoint accepts. If that name were sent back, every later request of the conversation would
// fail.
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

// cleanArguments returns the arguments of a call as a JSON object. It wraps arguments that are not an object in one,
// and returns {} for empty arguments. Endpoints with a chat template parse the arguments of earlier calls, and refuse
// the whole request if they are not an object.
func cleanArguments(raw string) string {
	if raw == "" {
		return "{}"
	}
	if v := jsontext.Value(raw); v.Kind() == '{' && v.IsValid(laxJSON...) {
		return raw
	}
	return string(append(appendQuoted([]byte(`{"invalid_arguments":`), raw), '}'))
}
