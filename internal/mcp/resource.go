package mcp

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"answerd/internal/help"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"
)

// Bounds of the description of a server's read tool.
const (
	maxResourceDoc = 200 // bytes of the text about one resource
	// maxEnum bounds the enum of URIs in the tool's schema. With more resources, only the
	// description names them.
	maxEnum = 100
)

// readTool is the original name of the tool that reads a server's resources.
const readTool = "read_resource"

// withResources returns tools and, if the server has resources that the configuration names,
// one more tool that reads them. If the resources cannot be listed the tools are still
// returned, except after a failure of the connection: then the whole list is asked for again,
// because otherwise the tool that reads would be missing until the next list.
func (s *server) withResources(tools []catalog.Tool, used *session.Session) ([]catalog.Tool, *transport.Failure) {
	if len(s.cfg.Resources) == 0 {
		return tools, nil
	}
	offered, f := used.ListResources(time.Now().Add(listTime), s.cfg.AllowsResource)
	switch {
	case f != nil && (f.Lost || f.Kind == Unavailable || f.Kind == UnknownOutcome):
		return nil, f
	case f != nil:
		s.log.Warn("MCP resources could not be listed", "reason", f.StateReason(), help.Servers.Attr())
		return tools, nil
	case len(offered) == 0:
		return tools, nil
	}
	name := readTool
	for slices.ContainsFunc(tools, func(t catalog.Tool) bool { return t.Original == name }) {
		name += "_" // the server has one of its own
	}
	return append(tools, newReadTool(s.cfg.Name, name, offered)), nil
}

// newReadTool returns the tool that reads resources.
func newReadTool(server, name string, resources []session.Resource) catalog.Tool {
	var text strings.Builder
	fmt.Fprintf(&text, "Reads a resource of the MCP server %s by its URI. Replace the parts of a URI in braces. The resources are:\n", server)
	uri := map[string]any{"type": "string", "description": "The URI of the resource."}
	var enum []string
	listable := len(resources) <= maxEnum // in the schema
	for _, r := range resources {
		label := r.Title
		if label == "" {
			label = r.Name
		}
		if r.Description != "" {
			label += ": " + r.Description
		}
		fmt.Fprintf(&text, "- %s (%s)\n", r.Address(), wire.Printable(label, maxResourceDoc))
		listable = listable && r.Template == ""
		enum = append(enum, r.URI)
	}
	if listable {
		uri["enum"] = enum
	}
	schema, _ := json.Marshal(map[string]any{ // texts always marshal
		"type": "object", "properties": map[string]any{"uri": uri}, "required": []string{"uri"}, "additionalProperties": false,
	})
	return catalog.Tool{
		Server: server, Original: name, Title: "Read a resource", Description: wire.Truncate(text.String(), catalog.MaxDescription),
		InputSchema: schema, Annotations: &catalog.Annotations{ReadOnly: true, Idempotent: true}, ReadsResources: true,
	}
}

// readURI returns the URI that a call of the read tool names.
func (s *server) readURI(args json.RawMessage) (string, *transport.Failure) {
	var in struct {
		URI string `json:"uri"`
	}
	if json.Unmarshal(args, &in) != nil || in.URI == "" {
		return "", &transport.Failure{Kind: InvalidArguments, Public: "missing required field: uri", NotRun: true}
	}
	if !s.cfg.AllowsResource(in.URI) {
		return "", &transport.Failure{Kind: InvalidArguments, Public: "no resource with that URI may be read", NotRun: true}
	}
	return in.URI, nil
}
