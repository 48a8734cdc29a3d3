package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of what a server's read tool offers.
const (
	maxResources   = 256
	maxResourceDoc = 200 // bytes of what one line says about a resource
	// maxEnum is how many resources are listed in the tool's schema. More are only
	// named in its description.
	maxEnum = 100
)

// readTool is the original name of the tool that reads a server's resources.
const readTool = "read_resource"

// resource is a resource, or a template of some, that matches the server's patterns.
type resource struct {
	URI         string `json:"uri"`
	Template    string `json:"uriTemplate"`
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
}

// address is its URI or its template.
func (r *resource) address() string {
	if r.Template != "" {
		return r.Template
	}
	return r.URI
}

// withResources is tools and, where the configuration names resources that the server
// has, one more tool that reads them (S4.7). Without them the tools are still good, unless
// it is the connection that failed: then the whole list is asked for again, or the tool
// would be gone until the next one.
func (s *server) withResources(tools []Tool, used *session) ([]Tool, *transport.Failure) {
	if len(s.cfg.Resources) == 0 {
		return tools, nil
	}
	offered, f := s.resources(used)
	switch {
	case f != nil && (f.Lost || f.Kind == Unavailable || f.Kind == UnknownOutcome):
		return nil, f
	case f != nil:
		s.log.Warn("MCP resources could not be listed", "reason", f.StateReason())
		return tools, nil
	case len(offered) == 0:
		return tools, nil
	}
	name := readTool
	for slices.ContainsFunc(tools, func(t Tool) bool { return t.Original == name }) {
		name += "_" // the server has one of its own
	}
	return append(tools, offer(s.cfg.Name, name, offered)), nil
}

// resources are those that match the patterns, and the templates that do.
func (s *server) resources(used *session) ([]resource, *transport.Failure) {
	deadline := time.Now().Add(listTime)
	listed, f := paged("resources", maxResources, func(cursor string) (json.RawMessage, *transport.Failure) {
		return s.request(context.Background(), used, nil, deadline, func(x *exchange) (json.RawMessage, *transport.Failure) {
			return ask(x, "resources/list", &sdk.ListResourcesParams{Cursor: cursor})
		})
	})
	if f != nil {
		return nil, f
	}
	templates, f := paged("resourceTemplates", maxResources, func(cursor string) (json.RawMessage, *transport.Failure) {
		return s.request(context.Background(), used, nil, deadline, func(x *exchange) (json.RawMessage, *transport.Failure) {
			return ask(x, "resources/templates/list", &sdk.ListResourceTemplatesParams{Cursor: cursor})
		})
	})
	if f != nil {
		return nil, f
	}
	var out []resource
	for _, raw := range append(listed, templates...) {
		var r resource
		if json.Unmarshal(raw, &r) == nil && s.cfg.AllowsResource(r.address()) {
			out = append(out, r)
			if r.Template == "" {
				used.shelf.want(r.URI)
			}
		}
	}
	return out, nil
}

// offer is the tool that reads resources.
func offer(server, name string, resources []resource) Tool {
	var text strings.Builder
	fmt.Fprintf(&text, "Reads a resource of the MCP server %s by its URI. Parts of a URI in braces are to be filled in. There are:\n", server)
	uri := map[string]any{"type": "string", "description": "The URI of the resource."}
	var enum []string
	whole := len(resources) <= maxEnum
	for _, r := range resources {
		says := r.Title
		if says == "" {
			says = r.Name
		}
		if r.Description != "" {
			says += ": " + r.Description
		}
		fmt.Fprintf(&text, "- %s (%s)\n", r.address(), wire.Printable(says, maxResourceDoc))
		whole = whole && r.Template == ""
		enum = append(enum, r.URI)
	}
	if whole {
		uri["enum"] = enum
	}
	schema, _ := json.Marshal(map[string]any{ // texts always marshal
		"type": "object", "properties": map[string]any{"uri": uri}, "required": []string{"uri"}, "additionalProperties": false,
	})
	return Tool{
		Server: server, Original: name, Title: "Read a resource", Description: wire.Truncate(text.String(), maxDescription),
		InputSchema: schema, Annotations: &Annotations{ReadOnly: true, Idempotent: true}, reads: true,
	}
}

// readArgs is the URI that a call of the read tool names.
func (s *server) readArgs(args json.RawMessage) (string, *transport.Failure) {
	var in struct {
		URI string `json:"uri"`
	}
	if json.Unmarshal(args, &in) != nil || in.URI == "" {
		return "", &transport.Failure{Kind: InvalidArguments, Public: "missing required field: uri", NotRun: true}
	}
	if !s.cfg.AllowsResource(in.URI) {
		return "", &transport.Failure{Kind: InvalidArguments, Public: "there is no resource of that URI to be read", NotRun: true}
	}
	return in.URI, nil
}

// read reads a resource, or takes it from what was read of it before, if that is known
// to be fresh.
func (x *exchange) read(k bookKey, meta sdk.Meta) (json.RawMessage, *transport.Failure) {
	kept, begun := x.session.shelf.take(k)
	if kept != nil {
		return kept, nil
	}
	raw, f := x.rounds(func(in sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
		return ask(x, methodRead, &sdk.ReadResourceParams{Meta: meta, URI: k.uri, InputResponses: in, RequestState: state})
	})
	if f != nil {
		return nil, f
	}
	var w ttl
	if json.Unmarshal(raw, &w) == nil && checkType(w.ResultType) == nil {
		x.session.shelf.want(k.uri)
		x.session.shelf.put(k, raw, w.life(x.session), begun)
	}
	return raw, nil
}

// decodeRead turns a resources/read result into that of a call: a content block for
// each part, as a tool would embed it.
func decodeRead(raw json.RawMessage) (*Result, *transport.Failure) {
	var w struct {
		Contents   []json.RawMessage `json:"contents"`
		ResultType string            `json:"resultType"`
	}
	raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, transport.BadReply("its resource does not decode", err)
	}
	if f := checkType(w.ResultType); f != nil {
		return nil, f
	}
	r := &Result{}
	for _, c := range w.Contents {
		if len(c) == 0 || c[0] != '{' {
			return nil, transport.BadReply("the contents of a resource are not objects", nil)
		}
		block, err := json.Marshal(map[string]any{"type": "resource", "resource": c})
		if err != nil {
			return nil, transport.BadReply("its resource does not encode", err)
		}
		r.Content = append(r.Content, block)
	}
	return r, nil
}
