package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"answerd/internal/llm"

	"github.com/go-json-experiment/json/jsontext"
)

// maxToolTextBytes is the largest size of a toolTextCache, in bytes.
const maxToolTextBytes = 32 << 20

// toolTextCache stores tools in their form in a request. Each version of a tool is adapted and marshalled once, for all
// requests and for any combination with other tools.
type toolTextCache struct {
	mu    sync.Mutex // guards the fields below
	texts map[toolVersion]json.RawMessage
	size  int // size of texts, and of the descriptions and schemas in their keys, in bytes
}

// toolVersion holds everything about a tool that a model sees.
type toolVersion struct {
	name, description, schema string
	strict                    bool
}

// renderTool returns the tool's element of the tools array, from the cache if possible. The caller must not change the
// result. renderTool returns an error if the schema is not JSON, because that would corrupt the request.
func (c *toolTextCache) renderTool(tool llm.Tool) (json.RawMessage, error) {
	c.mu.Lock()
	// Write the key here and not in a variable: the lookup then does not copy the schema.
	text, ok := c.texts[toolVersion{tool.Name, tool.Description, string(tool.Schema), tool.Strict}]
	c.mu.Unlock()
	if ok {
		return text, nil
	}
	text, err := encodeTool(tool)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A server may generate new tools without end, so empty the cache when it is full. Tools in use return to it with
	// the next request.
	size := len(text) + len(tool.Schema) + len(tool.Description)
	if c.texts == nil || c.size+size > maxToolTextBytes {
		c.texts, c.size = map[toolVersion]json.RawMessage{}, 0
	}
	c.size += size
	c.texts[toolVersion{tool.Name, tool.Description, string(tool.Schema), tool.Strict}] = text
	return text, nil
}

// encodeTool returns the tool's element of the tools array, with the schema adapted. A tool is strict only if its
// schema allows it. encodeTool returns an error if the schema is not JSON.
func encodeTool(tool llm.Tool) (json.RawMessage, error) {
	schema := noParameters
	if len(tool.Schema) > 0 {
		compact := jsontext.Value(tool.Schema).Clone()
		if err := compact.Compact(laxJSON...); err != nil {
			return nil, fmt.Errorf("encode the tool %.64q: its schema is not JSON", tool.Name)
		}
		schema = adaptParameters(json.RawMessage(compact))
	}
	b := appendQuoted([]byte(`{"type":"function","function":{"name":`), tool.Name)
	if tool.Description != "" {
		b = appendQuoted(append(b, `,"description":`...), tool.Description)
	}
	b = append(append(b, `,"parameters":`...), schema...)
	if tool.Strict && allowsStrict(schema) {
		b = append(b, `,"strict":true`...)
	}
	return append(b, "}}"...), nil
}

// toolCache stores the tool lists that were rendered last. Almost every request offers the same tools, and rendering
// 1,000 tools costs more than the rest of the request. The cache holds several lists, because a run with tool search
// offers its own list. Lists are read without a lock. A new list replaces the oldest.
type toolCache struct {
	blocks [8]atomic.Pointer[toolBlock] // in any order; nil if not used yet
	stores atomic.Uint32                // number of lists stored so far; modulo 8, the index of the last one
	tools  toolTextCache                // the individual tools of the lists
}

// findBlock returns the cached list that was rendered from equal tools in the same order, or nil if it is not cached.
func (c *toolCache) findBlock(tools []llm.Tool) *toolBlock {
	for i := range c.blocks {
		if b := c.blocks[i].Load(); b != nil && slices.EqualFunc(b.tools, tools, sameTool) {
			return b
		}
	}
	return nil
}

// toolBlock holds a rendered list and the tools that it was rendered from. It does not change once it is stored, so
// that requests can share it.
type toolBlock struct {
	tools []llm.Tool
	json  []byte
}

// noParameters is sent for a tool without a schema, because endpoints require one.
var noParameters = json.RawMessage(`{"type":"object","properties":{}}`)

// renderTools returns tools as a JSON array, from the cache if possible. The caller must not change the array.
// renderTools returns an error if a schema is not JSON, because that would corrupt the request.
func (c *toolCache) renderTools(tools []llm.Tool) ([]byte, error) {
	if cached := c.findBlock(tools); cached != nil {
		return cached.json, nil
	}
	texts := make([]json.RawMessage, len(tools))
	for i, t := range tools {
		var err error
		if texts[i], err = c.tools.renderTool(t); err != nil {
			return nil, err
		}
	}
	block := &toolBlock{tools: slices.Clone(tools), json: encodeArray(texts...)}
	c.blocks[c.stores.Add(1)%uint32(len(c.blocks))].Store(block)
	return block.json, nil
}

// sameTool reports whether two tools are equal. It is fast for the tools of one list, because equal strings and slices
// that share their bytes are compared by address.
func sameTool(a, b llm.Tool) bool {
	return a.Name == b.Name && a.Description == b.Description && a.Strict == b.Strict && bytes.Equal(a.Schema, b.Schema)
}
