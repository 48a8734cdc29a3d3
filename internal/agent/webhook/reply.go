package webhook

import (
	"encoding/base64"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
)

// Bounds of a reply.
const (
	maxReason   = 500       // bytes of the reason of an abort, which the caller of the run reads
	maxBlocks   = 1000      // content blocks
	maxAdded    = 256 << 10 // bytes of Instructions and Messages together
	maxMessages = 32        // Messages
)

// Reply is what a service decided. The zero value changes nothing; otherwise one of Text, Content,
// Args and Abort is set, or Instructions, Messages or both.
type Reply struct {
	Text    *string            // the new result of the tool, as a text
	Content *Result            // the new result of the tool, as content blocks
	Args    stdjson.RawMessage // the new arguments, a JSON object; for PreToolCall only

	// Instructions are added to the system prompt of a request. Messages are added after its last message, with the
	// role user. Both are for PreModelCall only.
	Instructions string
	Messages     []string

	Abort  bool   // the run ends
	Reason string // why Abort is set; one line, or ""
}

// String returns one word for what the reply does, for logs and telemetry. It has no text of the service.
func (r Reply) String() string {
	switch {
	case r.Abort:
		return "abort"
	case r.Args != nil:
		return "args"
	case r.Text != nil, r.Content != nil:
		return "content"
	case r.extends():
		return "extend"
	}
	return "nothing"
}

// extends reports whether the reply adds something to a model request.
func (r Reply) extends() bool { return r.Instructions != "" || len(r.Messages) > 0 }

// errReply does not wrap the error of the decoder, which could quote the reply.
var errReply = errors.New("the reply is not one JSON object of the agreed shape")

// memberHooks lists the members that a reply may have, each with the hooks whose replies may have it.
var memberHooks = map[string][]Event{
	"content":      {PreToolCall, ToolError, ToolResult},
	"structured":   {PreToolCall, ToolError, ToolResult},
	"args":         {PreToolCall},
	"instructions": {PreModelCall},
	"messages":     {PreModelCall},
	"abort":        {PreToolCall, ToolError, ToolResult, PreModelCall, ModelResult, Interrupt},
	"reason":       {PreToolCall, ToolError, ToolResult, PreModelCall, ModelResult, Interrupt},
}

// parseReply decodes the reply to a question about hook. It is strict, because a reply is a permission: an unknown
// member, or a member in another spelling, may have been meant to forbid the call. A member that is null counts as left
// out, because the JSON encoders of many languages write absent values as null. Errors name the member and do not quote
// its value.
func parseReply(hook Event, text []byte) (Reply, error) {
	// json/v2 compares the names of members exactly, and refuses an object with two members of the same name.
	var members map[string]stdjson.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return Reply{}, errReply
	}

	var reply Reply
	var structured stdjson.RawMessage
	for name, value := range members {
		if string(value) == "null" {
			continue
		}
		hooks, known := memberHooks[name]
		switch {
		case !known:
			return Reply{}, errors.New("the reply has an unknown member")
		case !slices.Contains(hooks, hook):
			return Reply{}, fmt.Errorf("the reply has %s, which %s does not take", name, hook)
		case name == "structured":
			structured = value
			continue
		}
		if err := reply.setMember(name, value); err != nil {
			return Reply{}, err
		}
	}

	if structured != nil { // It is added last, because it needs the content.
		if err := reply.addStructured(structured); err != nil {
			return Reply{}, err
		}
	}

	reply.Reason = cleanReason(reply.Reason)
	if err := reply.validateReply(); err != nil {
		return Reply{}, err
	}
	return reply, nil
}

// setMember decodes a member into its field. name is one of memberHooks except "structured", which addStructured adds.
// value is valid JSON, and so not empty.
func (r *Reply) setMember(name string, value stdjson.RawMessage) (err error) {
	switch name {
	case "content":
		err = r.parseContent(value)
	case "args":
		r.Args = value
		if value[0] != '{' {
			err = wrongType(name)
		}
	case "instructions":
		err = unmarshal(name, value, &r.Instructions)
	case "messages":
		r.Messages, err = parseMessages(value)
	case "abort":
		err = unmarshal(name, value, &r.Abort)
	case "reason":
		err = unmarshal(name, value, &r.Reason)
	}
	return err
}

// wrongType returns the error for a member whose value has the wrong JSON type.
func wrongType(name string) error { return fmt.Errorf("the reply's %s is of a wrong type", name) }

// unmarshal decodes the value of the member with that name into target, which is a pointer. The error of the decoder is
// replaced, because it could quote the value.
func unmarshal(name string, value stdjson.RawMessage, target any) error {
	if json.Unmarshal(value, target) != nil {
		return wrongType(name)
	}
	return nil
}

// parseContent decodes the member content, which is a text or a list of MCP content blocks, into r.Text or r.Content.
func (r *Reply) parseContent(value stdjson.RawMessage) error {
	if value[0] == '"' {
		r.Text = new(string)
		return unmarshal("content", value, r.Text)
	}
	var blocks []stdjson.RawMessage
	if err := unmarshal("content", value, &blocks); err != nil {
		return err
	}
	if len(blocks) > maxBlocks {
		return fmt.Errorf("the reply's content has more than %d blocks", maxBlocks)
	}
	for i, b := range blocks {
		if problem := checkBlock(b); problem != "" {
			return fmt.Errorf("the reply's content/%d%s", i, problem)
		}
	}
	r.Content = &Result{Content: blocks}
	return nil
}

// blockMembers lists the types of content blocks (MCP 2025-11-25, ContentBlock) with the members that must be strings.
var blockMembers = map[string][]string{
	"text":          {"text"},
	"image":         {"data", "mimeType"},
	"audio":         {"data", "mimeType"},
	"resource_link": {"uri", "name"},
	"resource":      {},
}

// checkBlock returns what is wrong with a content block, or "" if nothing is. The text continues the JSON pointer to
// the block, as in "/type is missing".
func checkBlock(raw stdjson.RawMessage) string {
	var members map[string]stdjson.RawMessage
	if json.Unmarshal(raw, &members) != nil || members == nil {
		return " is not an object"
	}
	kind, ok := stringOf(members["type"])
	if !ok {
		return "/type is missing or not a string"
	}
	names, known := blockMembers[kind]
	if !known {
		return "/type must be text, image, audio, resource_link or resource"
	}
	for _, name := range names {
		if _, ok := stringOf(members[name]); !ok {
			return "/" + name + " is missing or not a string"
		}
	}
	switch kind {
	case "image", "audio":
		data, _ := stringOf(members["data"])
		if _, err := base64.StdEncoding.DecodeString(data); err != nil || data == "" {
			return "/data is not base64"
		}
	case "resource":
		return checkResource(members["resource"])
	}
	return ""
}

// checkResource returns what is wrong with the member resource of a content block, or "". The text continues the JSON
// pointer to the block.
func checkResource(raw stdjson.RawMessage) string {
	var r map[string]stdjson.RawMessage
	if json.Unmarshal(raw, &r) != nil || r == nil {
		return "/resource is missing or not an object"
	}
	if _, ok := stringOf(r["uri"]); !ok {
		return "/resource/uri is missing or not a string"
	}
	_, isText := stringOf(r["text"])
	blob, isBlob := stringOf(r["blob"])
	if isText == isBlob {
		return "/resource must have either text or blob, a string"
	}
	if _, err := base64.StdEncoding.DecodeString(blob); err != nil {
		return "/resource/blob is not base64"
	}
	return ""
}

// stringOf returns the value of a JSON string. ok is false if raw is empty or another value.
func stringOf(raw stdjson.RawMessage) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}

// addStructured adds structured content to r.Content. A text in r.Text becomes a content block. A reply without
// content is refused, because models read the content, and only programs read the structured content.
func (r *Reply) addStructured(structured stdjson.RawMessage) error {
	switch {
	case r.Text != nil:
		text, _ := stdjson.Marshal(map[string]string{"type": "text", "text": *r.Text}) // strings always marshal
		r.Text, r.Content = nil, &Result{Content: []stdjson.RawMessage{text}}
	case r.Content == nil:
		return errors.New("the reply has structured without content")
	}
	r.Content.Structured = structured
	return nil
}

// parseMessages decodes the member messages and returns the contents of the messages, each of which has the role user.
func parseMessages(value stdjson.RawMessage) ([]string, error) {
	var list []stdjson.RawMessage
	if err := unmarshal("messages", value, &list); err != nil {
		return nil, err
	}
	if len(list) > maxMessages {
		return nil, fmt.Errorf("the reply's messages are more than %d", maxMessages)
	}
	var out []string
	for i, raw := range list {
		var m struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		}
		err := json.Unmarshal(raw, &m, json.RejectUnknownMembers(true))
		switch {
		case err != nil:
			return nil, fmt.Errorf("the reply's messages/%d is not {role, content} with two strings", i)
		case m.Role != "user":
			return nil, fmt.Errorf("the reply's messages/%d/role must be user", i)
		case m.Content == "":
			return nil, fmt.Errorf("the reply's messages/%d/content is missing", i)
		}
		out = append(out, m.Content)
	}
	return out, nil
}

// validateReply returns an error for a reply with more than one decision, with a reason but no abort, or with more than
// maxAdded bytes for a request.
func (r Reply) validateReply() error {
	decisions := 0
	for _, isMade := range []bool{r.Text != nil || r.Content != nil, r.Args != nil, r.extends(), r.Abort} {
		if isMade {
			decisions++
		}
	}
	added := len(r.Instructions)
	for _, m := range r.Messages {
		added += len(m)
	}
	switch {
	case decisions > 1 && r.extends():
		return errors.New("the reply has instructions or messages beside an abort")
	case decisions > 1:
		return errors.New("the reply has more than one of content, args and abort")
	case r.Reason != "" && !r.Abort:
		return errors.New("the reply has a reason without an abort")
	case added > maxAdded:
		return fmt.Errorf("the reply's instructions and messages are longer than %d bytes", maxAdded)
	}
	return nil
}

// cleanReason returns at most maxReason bytes of text, with spaces in place of control characters and without white
// space at its ends.
func cleanReason(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "")
	}
	return strings.TrimSpace(text)
}
