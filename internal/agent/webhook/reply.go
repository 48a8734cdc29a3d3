package webhook

import (
	"encoding/base64"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
)

// Limits on a reply.
const (
	maxReason   = 500       // bytes of the reason for an abort, which API clients can read
	maxBlocks   = 1000      // content blocks
	maxAdded    = 256 << 10 // bytes of Instructions and Messages together
	maxMessages = 32        // Messages
)

// Reply is what the service decided. The zero value changes nothing. Otherwise either exactly one of Text, Content,
// Args and Abort is set, or Instructions, Messages or both are.
type Reply struct {
	Text    *string            // replaces the tool's result by a text
	Content *Result            // replaces the tool's result by content blocks
	Args    stdjson.RawMessage // replaces the arguments by this JSON object; only for PreToolCall

	// Instructions are added to the system prompt of a request, and Messages after its last message, with the role
	// user. Both are only for PreModelCall.
	Instructions string
	Messages     []string

	Abort  bool   // ends the run
	Reason string // why Abort is set, on one line; may be ""
}

// String returns one word for what the reply does, for logs and telemetry. It contains no text from the service.
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

// extends reports whether the reply adds to a model request.
func (r Reply) extends() bool { return r.Instructions != "" || len(r.Messages) > 0 }

// errReply hides the decoder's error, which could quote the reply.
var errReply = errors.New("the reply is not one JSON object of the agreed shape")

// memberHooks lists the members that a reply may have, and for each the hooks whose replies may have it.
var memberHooks = map[string][]Event{
	"content":      {PreToolCall, ToolError, ToolResult},
	"structured":   {PreToolCall, ToolError, ToolResult},
	"args":         {PreToolCall},
	"instructions": {PreModelCall},
	"messages":     {PreModelCall},
	"abort":        {PreToolCall, ToolError, ToolResult, PreModelCall, ModelResult, Interrupt},
	"reason":       {PreToolCall, ToolError, ToolResult, PreModelCall, ModelResult, Interrupt},
}

// parseReply decodes the reply to a question about hook. It is strict, because a reply is a permission: an unknown or
// misspelled member may have been meant to forbid the call. It treats null like a missing member, because JSON encoders
// in many languages write absent values as null. Errors name the member but do not quote its value.
func parseReply(hook Event, text []byte) (Reply, error) {
	// json/v2 matches names exactly, and refuses an object that has the same name twice.
	var members map[string]stdjson.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return Reply{}, errReply
	}
	maps.DeleteFunc(members, func(_ string, value stdjson.RawMessage) bool { return string(value) == "null" })

	var reply Reply
	for name, value := range members {
		hooks, known := memberHooks[name]
		if !known {
			return Reply{}, errors.New("the reply has an unknown member")
		}
		if !slices.Contains(hooks, hook) {
			return Reply{}, fmt.Errorf("the reply has %s, which %s does not take", name, hook)
		}
		if err := reply.setMember(name, value); err != nil {
			return Reply{}, err
		}
	}
	if structured := members["structured"]; structured != nil {
		if err := reply.addStructured(structured); err != nil {
			return Reply{}, err
		}
	}
	reply.Reason = cleanReason(reply.Reason)
	if err := reply.validate(); err != nil {
		return Reply{}, err
	}
	return reply, nil
}

// setMember decodes a member into its field. name must be in memberHooks. setMember ignores "structured", which
// parseReply adds after the content (addStructured). value must be valid JSON, and so is not empty.
func (r *Reply) setMember(name string, value stdjson.RawMessage) (err error) {
	switch name {
	case "content":
		err = r.parseContent(value)
	case "args":
		r.Args = value
		if value[0] != '{' {
			err = wrongTypeError(name)
		}
	case "instructions":
		err = decodeMember(name, value, &r.Instructions)
	case "messages":
		r.Messages, err = parseMessages(value)
	case "abort":
		err = decodeMember(name, value, &r.Abort)
	case "reason":
		err = decodeMember(name, value, &r.Reason)
	}
	return err
}

// wrongTypeError returns the error for a member whose value has the wrong JSON type.
func wrongTypeError(name string) error { return fmt.Errorf("the reply's %s is of a wrong type", name) }

// decodeMember decodes the value of the member name into the pointer target. It does not return the decoder's error,
// which could quote the value.
func decodeMember(name string, value stdjson.RawMessage, target any) error {
	if json.Unmarshal(value, target) != nil {
		return wrongTypeError(name)
	}
	return nil
}

// parseContent decodes the member content into r.Text if it is a text, or into r.Content if it is a list of blocks.
func (r *Reply) parseContent(value stdjson.RawMessage) error {
	if value[0] == '"' {
		r.Text = new(string)
		return decodeMember("content", value, r.Text)
	}
	var blocks []stdjson.RawMessage
	if err := decodeMember("content", value, &blocks); err != nil {
		return err
	}
	if len(blocks) > maxBlocks {
		return fmt.Errorf("the reply's content has more than %d blocks", maxBlocks)
	}
	for i, block := range blocks {
		if problem := checkBlock(block); problem != "" {
			return fmt.Errorf("the reply's content/%d%s", i, problem)
		}
	}
	r.Content = &Result{Content: blocks}
	return nil
}

// blockMembers lists the types of content blocks (MCP 2025-11-25, ContentBlock) and, for each type, the members that
// must be strings.
var blockMembers = map[string][]string{
	"text":          {"text"},
	"image":         {"data", "mimeType"},
	"audio":         {"data", "mimeType"},
	"resource_link": {"uri", "name"},
	"resource":      {},
}

// checkBlock returns what is wrong with a content block, or "". The text is meant to follow the JSON pointer to the
// block, as in "/type is missing".
func checkBlock(raw stdjson.RawMessage) string {
	var members map[string]stdjson.RawMessage
	if json.Unmarshal(raw, &members) != nil || members == nil {
		return " is not an object"
	}
	blockType, ok := stringOf(members["type"])
	if !ok {
		return "/type is missing or not a string"
	}
	stringMembers, known := blockMembers[blockType]
	if !known {
		return "/type must be text, image, audio, resource_link or resource"
	}
	for _, name := range stringMembers {
		if _, ok := stringOf(members[name]); !ok {
			return "/" + name + " is missing or not a string"
		}
	}
	switch blockType {
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

// checkResource returns what is wrong with a content block's member resource, or "". Like checkBlock's, the text
// follows the JSON pointer to the block.
func checkResource(raw stdjson.RawMessage) string {
	var members map[string]stdjson.RawMessage
	if json.Unmarshal(raw, &members) != nil || members == nil {
		return "/resource is missing or not an object"
	}
	if _, ok := stringOf(members["uri"]); !ok {
		return "/resource/uri is missing or not a string"
	}
	_, isText := stringOf(members["text"])
	blob, isBlob := stringOf(members["blob"])
	if isText == isBlob {
		return "/resource must have either text or blob, a string"
	}
	if _, err := base64.StdEncoding.DecodeString(blob); err != nil {
		return "/resource/blob is not base64"
	}
	return ""
}

// stringOf returns the value of a JSON string. ok is false if raw is empty or not a string.
func stringOf(raw stdjson.RawMessage) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	ok = json.Unmarshal(raw, &s) == nil
	return s, ok
}

// addStructured adds structured content to r.Content; a text in r.Text first becomes a content block. It refuses
// structured content without content, because models read only the content, not the structured content.
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

// parseMessages decodes the member messages, and returns the messages' texts. All of them must have the role user.
func parseMessages(value stdjson.RawMessage) ([]string, error) {
	var list []stdjson.RawMessage
	if err := decodeMember("messages", value, &list); err != nil {
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

// validate returns an error if the reply has more than one decision, a reason without an abort, or more than maxAdded
// bytes to add to a request.
func (r Reply) validate() error {
	decisions := 0
	replacesResult := r.Text != nil || r.Content != nil
	for _, isMade := range []bool{replacesResult, r.Args != nil, r.extends(), r.Abort} {
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

// cleanReason returns at most maxReason bytes of text, with control characters replaced by spaces, and trimmed.
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
