package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Result is a server's answer to a call.
type Result struct {
	Content    []json.RawMessage // each an MCP content block, as received
	Structured json.RawMessage   // structuredContent; nil where there is none
	IsError    bool              // the tool itself reports failure; Text says what
	// Violations is how the structured content differs from the tool's own output
	// schema; one of more than 1 MiB is not checked. The result is delivered all the same,
	// and Text says so.
	Violations []ContentField
}

// decodeResult reads a tools/call result from the bytes of the wire rather than from
// the SDK's types: those turn large integers into floats, and refuse content types
// that they don't know.
func decodeResult(raw json.RawMessage) (*Result, *failure) {
	var w struct {
		Content    []json.RawMessage `json:"content"`
		Structured json.RawMessage   `json:"structuredContent"`
		IsError    bool              `json:"isError"`
		ResultType string            `json:"resultType"`
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, badReply("its result does not decode", err)
	}
	if f := checkType(w.ResultType); f != nil {
		return nil, f
	}
	for _, c := range w.Content {
		if len(c) == 0 || c[0] != '{' {
			return nil, badReply("a content block is not an object", nil)
		}
	}
	r := &Result{Content: w.Content, IsError: w.IsError}
	// null is how some servers write "none"; other falsy values are values (S2.7).
	if s := bytes.TrimSpace(w.Structured); len(s) > 0 && string(s) != "null" {
		r.Structured = s
	}
	return r, nil
}

// checkType refuses results that are none yet. The SDK hands some of them out as empty
// results, without an error. Such as "task": an answer that is to be fetched elsewhere,
// later. (What input_required leaves here is the end of the SDK's patience with it.)
func checkType(resultType string) *failure {
	if resultType == "" || resultType == "complete" {
		return nil
	}
	return badReply(fmt.Sprintf("a result of type %.40q", resultType), nil)
}

// block is what of a content block Text needs.
type block struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	MIME     string `json:"mimeType"`
	Data     string `json:"data"`
	URI      string `json:"uri"`
	Name     string `json:"name"`
	Size     int64  `json:"size"`
	Resource struct {
		URI  string  `json:"uri"`
		MIME string  `json:"mimeType"`
		Text *string `json:"text"`
		Blob string  `json:"blob"`
	} `json:"resource"`
}

// Text is the result for a reader of text: text parts joined by newlines, other
// parts as a short placeholder with type and size, and "(no content)" where there
// is nothing (S1.6). The text of an embedded resource follows its placeholder.
func (r *Result) Text() string {
	if r.Violations != nil {
		return r.text() + "\n[This result does not fit the tool's own output schema:" + bulleted(r.Violations) + "]"
	}
	return r.text()
}

func (r *Result) text() string {
	if len(r.Content) == 0 {
		if r.Structured != nil {
			return string(r.Structured)
		}
		return "(no content)"
	}
	parts := make([]string, 0, len(r.Content))
	for _, raw := range r.Content {
		var b block
		if json.Unmarshal(raw, &b) != nil {
			parts = append(parts, fmt.Sprintf("[unreadable content, %d bytes]", len(raw)))
			continue
		}
		parts = append(parts, b.render(len(raw)))
	}
	return strings.Join(parts, "\n")
}

// render is the block as text; size is that of the whole block in bytes.
func (b *block) render(size int) string {
	switch b.Type {
	case "text":
		return b.Text
	case "image", "audio":
		return fmt.Sprintf("[%s %s, %d bytes]", b.Type, printable(b.MIME, 100), base64Size(b.Data))
	case "resource_link":
		s := "[link to resource " + printable(b.URI, 500)
		if b.MIME != "" {
			s += ", " + printable(b.MIME, 100)
		}
		if b.Size > 0 {
			s += fmt.Sprintf(", %d bytes", b.Size)
		}
		return s + "]"
	case "resource":
		uri, mime := printable(b.Resource.URI, 500), printable(b.Resource.MIME, 100)
		if t := b.Resource.Text; t != nil {
			return fmt.Sprintf("[resource %s, %s, %d bytes]\n%s", uri, mime, len(*t), *t)
		}
		return fmt.Sprintf("[resource %s, %s, %d bytes]", uri, mime, base64Size(b.Resource.Blob))
	}
	return fmt.Sprintf("[content of type %s, %d bytes]", printable(b.Type, 40), size)
}

// base64Size is the number of bytes that s stands for.
func base64Size(s string) int {
	return len(strings.TrimRight(s, "=")) * 3 / 4
}

// Payload is the result for a program: the structured content if there is any, else
// the text as a JSON string if every part is text, else the content (S2.7).
func (r *Result) Payload() json.RawMessage {
	if r.Structured != nil {
		return r.Structured
	}
	texts := make([]string, 0, len(r.Content))
	for _, raw := range r.Content {
		var b block
		if json.Unmarshal(raw, &b) != nil || b.Type != "text" {
			out, err := json.Marshal(r.Content)
			if err != nil {
				return json.RawMessage("[]") // can't be: the blocks were decoded
			}
			return out
		}
		texts = append(texts, b.Text)
	}
	out, _ := json.Marshal(strings.Join(texts, "\n")) // strings always marshal
	return out
}
