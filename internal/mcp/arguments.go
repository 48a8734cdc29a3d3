package mcp

import (
	"bytes"
	"encoding/json"

	"answerd/internal/mcp/content"
	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"
)

// compile compiles the schemas of the tools of the server with that id. Those that are
// as they were listed before are not compiled again: some servers are listed every
// minute. It is done before the catalogue is locked, since calls wait for the lock: a
// schema takes some 50 µs, and a bad one of 64 KiB a hundred times that.
func (c *catalogue) compile(id int, tools []Tool) {
	c.mu.Lock()
	before := c.entries[id].listed // never written
	c.mu.Unlock()
	known := make(map[string]*Tool, len(before))
	for i := range before {
		known[before[i].Original] = &before[i]
	}
	for i := range tools {
		t := &tools[i]
		old := known[t.Original]
		if old != nil && bytes.Equal(old.InputSchema, t.InputSchema) {
			t.input, t.Unchecked = old.input, old.Unchecked
		} else {
			t.input, t.Unchecked = c.compiled(t, "input", t.InputSchema)
		}
		switch {
		case t.OutputSchema == nil:
		case old != nil && bytes.Equal(old.OutputSchema, t.OutputSchema):
			t.output = old.output
		default:
			t.output, _ = c.compiled(t, "output", t.OutputSchema)
		}
	}
}

// compiled is a schema, or nil and the reason why there is none. The reason goes to the
// log once for each version of the tool. The tool stays usable: the server checks too.
func (c *catalogue) compiled(t *Tool, which string, raw json.RawMessage) (*schema.Schema, string) {
	s, err := schema.Compile(raw)
	if err == nil {
		return s, ""
	}
	reason := "the " + which + " schema cannot be used: " + err.Error()
	c.log.Warn("MCP tool not checked", "mcp_server", t.Server, "tool", wire.Printable(t.Original, 80), "reason", reason)
	return nil, reason
}

// CheckArgs checks the arguments of a call against the tool as it is listed now (S3.8),
// before anything is sent (S1.5). It returns them as they are to be sent: unchanged if
// they fit, else with strings taken for the JSON that they hold where that makes them
// fit. The error is a *CallError whose Fields name all that is wrong. What isn't there, or
// has no schema that can be used, is not checked; Call says what becomes of it.
func (c *Client) CheckArgs(tool string, args json.RawMessage) (json.RawMessage, error) {
	b, ok := c.names.find(tool)
	if !ok || b.input == nil || b.disabled != "" {
		return args, nil
	}
	coerced, wrong := b.input.Check(args)
	if wrong != nil {
		return args, &CallError{
			Kind: InvalidArguments, Tool: wire.Printable(tool, 80), Server: b.Server, Message: misfit(wrong), Fields: wrong,
		}
	}
	return coerced, nil
}

// refits is what is wrong with the arguments of a call right before it is sent.
func (b *binding) refits(args json.RawMessage) *transport.Failure {
	if b.input == nil {
		return nil
	}
	if wrong := b.input.Validate(args); wrong != nil {
		return &transport.Failure{Kind: InvalidArguments, Public: misfit(wrong), NotRun: true, Err: &wrongArguments{wrong}}
	}
	return nil
}

// misfit is what is wrong with arguments, for a model.
func misfit(wrong []ContentField) string {
	return "the arguments do not fit the tool's input schema:" + content.ListProblems(wrong)
}

// maxChecked bounds the structured content that is checked, in bytes: a larger one would
// cost more memory than it is worth.
const maxChecked = 1 << 20

// violations is how a result differs from what the tool says about its results.
func (b *binding) violations(r *content.Result) []ContentField {
	switch {
	case b.output == nil || r.IsError || len(r.Structured) > maxChecked:
		return nil
	case r.Structured == nil: // 2025-06-18 server/tools: it must be there
		return []ContentField{{Detail: "expected structured content, got none"}}
	}
	return b.output.Validate(r.Structured)
}

// SchemaExcerpt is the tool's input schema for somebody who is to write the arguments
// again: whole if it has at most n bytes, else of its fields only those that wrong is
// about, and if that is still too long, cut. What is missing is said.
func (t Tool) SchemaExcerpt(wrong []ContentField, n int) string {
	if len(t.InputSchema) <= n {
		return string(t.InputSchema)
	}
	return schema.Excerpt(t.InputSchema, wrong, n)
}
