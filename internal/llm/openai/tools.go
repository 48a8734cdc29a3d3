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

// maxToolTextBytes bounds the bytes of cached tools.
const maxToolTextBytes = 32 << 20

// toolTextCache stores tools in the form of the request. Each version of a tool is adapted and
// marshalled once, for all requests and in any combination with other tools.
type toolTextCache struct {
	mu    sync.Mutex // guards the fields below
	texts map[toolVersion]json.RawMessage
	size  int
}

// toolVersion holds everything of a tool that a model sees.
type toolVersion struct {
	name, description, schema string
	strict                    bool
}

// renderTool returns the tool's element of the tools array, which the caller must not change.
// It fails on a schema that is not JSON, which would corrupt the request.
func (c *toolTextCache) renderTool(tool llm.Tool) (json.RawMessage, error) {
	c.mu.Lock()
	text, ok := c.texts[toolVersion{tool.Name, tool.Description, string(tool.Schema), tool.Strict}]
	c.mu.Unlock()
	if ok {
		return text, nil
	}
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
	text = append(b, "}}"...)
	c.mu.Lock()
	defer c.mu.Unlock()
	// A server may generate new tools without end, so the cache is emptied when it is full.
	// Tools in use return to it with the next request.
	size := len(text) + len(tool.Schema) + len(tool.Description)
	if c.texts == nil || c.size+size > maxToolTextBytes {
		c.texts, c.size = map[toolVersion]json.RawMessage{}, 0
	}
	c.size += size
	c.texts[toolVersion{tool.Name, tool.Description, string(tool.Schema), tool.Strict}] = text
	return text, nil
}

// toolCache stores the tool lists that were rendered last. Almost every request offers the same
// tools, and rendering 1,000 tools costs more than the rest of the request. It holds several
// lists, because runs with tool search offer their own. The lists are read without a lock; a new one
// replaces the oldest.
type toolCache struct {
	blocks  [8]atomic.Pointer[toolBlock]
	next    atomic.Uint32 // the index to replace next
	schemas toolTextCache
}

// findBlock returns the cached list of tools, or nil.
func (c *toolCache) findBlock(tools []llm.Tool) *toolBlock {
	for i := range c.blocks {
		if b := c.blocks[i].Load(); b != nil && slices.EqualFunc(b.tools, tools, sameTool) {
			return b
		}
	}
	return nil
}

// toolBlock holds a rendered list and the tools that it was rendered from. It does not change
// once it is stored, so requests may share it.
type toolBlock struct {
	tools []llm.Tool
	json  []byte
}

// noParameters is sent for a tool without a schema, because endpoints require one.
var noParameters = json.RawMessage(`{"type":"object","properties":{}}`)

// renderTools returns tools as a JSON array, which the caller must not change. It fails
// on a schema that is not JSON, which would corrupt the request.
func (c *toolCache) renderTools(tools []llm.Tool) ([]byte, error) {
	if kept := c.findBlock(tools); kept != nil {
		return kept.json, nil
	}
	texts := make([]json.RawMessage, len(tools))
	for i, t := range tools {
		var err error
		if texts[i], err = c.schemas.renderTool(t); err != nil {
			return nil, err
		}
	}
	block := &toolBlock{tools: slices.Clone(tools), json: encodeArray(texts...)}
	c.blocks[c.next.Add(1)%uint32(len(c.blocks))].Store(block)
	return block.json, nil
}

// sameTool compares two tools. It is fast for the tools of one list: equal strings and slices
// that share their bytes are compared by address.
func sameTool(a, b llm.Tool) bool {
	return a.Name == b.Name && a.Description == b.Description && a.Strict == b.Strict && bytes.Equal(a.Schema, b.Schema)
}
