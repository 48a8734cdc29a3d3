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

const (
	// maxReason bounds the reason of an abort, in bytes: the caller of the run reads it.
	maxReason = 500
	maxBlocks = 1000 // content blocks of a reply
	// maxAdded bounds what a reply to pre_model_call adds to a request, in bytes, and maxMessages the
	// messages among it.
	maxAdded    = 256 << 10
	maxMessages = 32
)

// Reply is what a service decided. The zero value changes nothing; otherwise one of Text, Content,
// Args and Abort is set, or Instructions, Messages or both.
type Reply struct {
	Text    *string            // becomes the tool's result
	Content *Result            // likewise, as content blocks
	Args    stdjson.RawMessage // a JSON object in place of the arguments; of PreToolCall only

	// Instructions are added to the system prompt of a request, and Messages, which are the user's, after
	// its last message; of PreModelCall only.
	Instructions string
	Messages     []string

	Abort  bool   // the run ends
	Reason string // of an abort; one line
}

// String returns what the reply does, in one word, for logs and telemetry: nothing of the
// service's own text.
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

// errReply says no more: the cause could quote the text.
var errReply = errors.New("the reply is not one JSON object of the agreed shape")

// takenBy lists the members of replies, and the hooks that take each.
var takenBy = map[string][]Event{
	"content":      {PreToolCall, ToolError, ToolResult},
	"structured":   {PreToolCall, ToolError, ToolResult},
	"args":         {PreToolCall},
	"instructions": {PreModelCall},
	"messages":     {PreModelCall},
	"abort":        {PreToolCall, ToolError, ToolResult, PreModelCall, ModelResult, Interrupt},
	"reason":       {PreToolCall, ToolError, ToolResult, PreModelCall, ModelResult, Interrupt},
}

// parseReply decodes a reply strictly, because it is a permission: an unknown member, or one in
// another spelling, may have been meant to forbid the call. A member that is null counts as left
// out, because many languages encode it so. Errors name the member and quote no value.
func parseReply(about Event, text []byte) (Reply, error) {
	// json/v2 takes names exactly as written, and refuses two of one name.
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
		hooks, known := takenBy[name]
		switch {
		case !known:
			return Reply{}, errors.New("the reply has an unknown member")
		case !slices.Contains(hooks, about):
			return Reply{}, fmt.Errorf("the reply has %s, which %s does not take", name, about)
		}
		var err error
		switch name {
		case "content":
			err = reply.parseContent(value)
		case "structured":
			structured = value
		case "args":
			reply.Args = value
			if value[0] != '{' {
				err = wrongType(name)
			}
		case "instructions":
			err = unmarshal(name, value, &reply.Instructions)
		case "messages":
			reply.Messages, err = parseMessages(value)
		case "abort":
			err = unmarshal(name, value, &reply.Abort)
		case "reason":
			err = unmarshal(name, value, &reply.Reason)
		}
		if err != nil {
			return Reply{}, err
		}
	}

	if structured != nil {
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

// wrongType returns the error for a member whose value is of another JSON type.
func wrongType(name string) error { return fmt.Errorf("the reply's %s is of a wrong type", name) }

// unmarshal decodes the member with that name. Its error has neither the value nor the words of the decoder.
func unmarshal(name string, value stdjson.RawMessage, to any) error {
	if json.Unmarshal(value, to) != nil {
		return wrongType(name)
	}
	return nil
}

// parseContent decodes a text, or a list of MCP content blocks.
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

// blockMembers lists the types of content blocks (MCP 2025-11-25, ContentBlock) with the members that
// must be strings.
var blockMembers = map[string][]string{
	"text": {"text"}, "image": {"data", "mimeType"}, "audio": {"data", "mimeType"}, "resource_link": {"uri", "name"}, "resource": {},
}

// checkBlock returns what is wrong with a content block, as a continuation of the pointer to it, or
// "".
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

// checkResource returns what is wrong with the member resource of a content block, as checkBlock does.
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

// stringOf returns the value of a JSON string; ok is false for any other value, and for none.
func stringOf(raw stdjson.RawMessage) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}

// addStructured adds structured content. The content is required then, because models read the content
// and programs the structured content.
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

// parseMessages decodes the messages that are added to a request.
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

// validateReply refuses a reply with two decisions, or with more than the bounds allow.
func (r Reply) validateReply() error {
	decisions := 0
	for _, made := range []bool{r.Text != nil || r.Content != nil, r.Args != nil, r.extends(), r.Abort} {
		if made {
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

// cleanReason returns at most maxReason bytes of s without control characters.
func cleanReason(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "")
	}
	return strings.TrimSpace(s)
}
