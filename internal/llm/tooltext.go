package llm

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// maxToolTexts bounds the bytes of rendered tools that are kept.
const maxToolTexts = 32 << 20

// toolTexts keeps each tool as it is in a request. A version of a tool is adapted and
// marshalled once, however many requests offer it, and beside whatever other tools.
type toolTexts struct {
	mu    sync.Mutex // protects what follows
	texts map[toolVersion]json.RawMessage
	size  int
}

// toolVersion is all of a tool that reaches a model.
type toolVersion struct{ name, description, schema string }

// of is the tool's element of the tools array, which the caller must not change. It
// fails on a schema that is not JSON, which would break out of its place in the request.
func (c *toolTexts) of(t Tool) (json.RawMessage, error) {
	c.mu.Lock()
	text, ok := c.texts[toolVersion{t.Name, t.Description, string(t.Schema)}]
	c.mu.Unlock()
	if ok {
		return text, nil
	}
	schema := noParameters
	if len(t.Schema) > 0 {
		compact := jsontext.Value(t.Schema).Clone()
		if err := compact.Compact(asWritten...); err != nil {
			return nil, fmt.Errorf("encode the tool %.64q: its schema is not JSON", t.Name)
		}
		schema = parameters(json.RawMessage(compact))
	}
	b := appendQuoted([]byte(`{"type":"function","function":{"name":`), t.Name)
	if t.Description != "" {
		b = appendQuoted(append(b, `,"description":`...), t.Description)
	}
	text = append(append(append(b, `,"parameters":`...), schema...), "}}"...)
	c.mu.Lock()
	defer c.mu.Unlock()
	// A server may invent tools for ever. Nearly all of those that are kept are still
	// offered then, and soon there again.
	size := len(text) + len(t.Schema) + len(t.Description)
	if c.texts == nil || c.size+size > maxToolTexts {
		c.texts, c.size = map[toolVersion]json.RawMessage{}, 0
	}
	c.size += size
	c.texts[toolVersion{t.Name, t.Description, string(t.Schema)}] = text
	return text, nil
}
