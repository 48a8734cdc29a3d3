package mcp

import (
	"cmp"
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

// Bounds of the description and the schema of a server's read tool.
const (
	maxResourceDoc = 200 // bytes of the text about one resource
	maxEnum        = 100 // resources; with more of them the schema has no enum of their URIs
)

// readTool is the original name of the tool that reads a server's resources, unless the server has a tool of that
// name.
const readTool = "read_resource"

// addReadTool adds a tool that reads resources to list, if the server has any that the configuration allows. It lists
// the resources in the session used. If the server refuses that, addReadTool logs it and adds nothing. If the connection
// failed, it returns a failure, so that tools and resources are listed again: otherwise the read tool would be missing
// until the next list.
func (s *server) addReadTool(list *toolList, used *session.Session) *transport.Failure {
	if len(s.cfg.Resources) == 0 {
		return nil
	}
	resources, reasonForCut, failure := used.ListResources(time.Now().Add(listTime), s.cfg.AllowsResource)
	if failure != nil {
		connectionFailed := failure.Lost || failure.Kind == Unavailable || failure.Kind == UnknownOutcome
		if connectionFailed {
			return failure
		}
		s.log.Warn("MCP resources could not be listed", "reason", failure.StateReason(), help.Servers.Attr())
		return nil
	}
	if reasonForCut != "" {
		list.resourcesCut = reasonForCut
		s.log.Warn("MCP resources left out", "kept", len(resources), "reason", "the list "+reasonForCut, help.ToolLists.Attr())
	}
	if len(resources) == 0 {
		return nil
	}
	name := readTool
	for slices.ContainsFunc(list.tools, func(t catalog.Tool) bool { return t.Original == name }) {
		name += "_" // the server itself has a tool of that name
	}
	list.tools = append(list.tools, newReadTool(s.cfg.Name, name, resources))
	return nil
}

// newReadTool returns the tool, with the original name name, that reads the resources of the server with the given
// name. Its description lists as many resources as fit. Its schema has an enum of their URIs, unless there are more
// than maxEnum or some are templates.
func newReadTool(server, name string, resources []session.Resource) catalog.Tool {
	var description strings.Builder
	fmt.Fprintf(&description, "Reads a resource of the MCP server %s by its URI. Replace the parts of a URI in braces. The resources are:\n", server)
	var uris []string
	fitsEnum := len(resources) <= maxEnum
	for _, r := range resources {
		label := cmp.Or(r.Title, r.Name)
		if r.Description != "" {
			label += ": " + r.Description
		}
		fmt.Fprintf(&description, "- %s (%s)\n", r.Address(), wire.Printable(label, maxResourceDoc))
		fitsEnum = fitsEnum && r.Template == ""
		uris = append(uris, r.URI)
	}
	uriSchema := map[string]any{"type": "string", "description": "The URI of the resource."}
	if fitsEnum {
		uriSchema["enum"] = uris
	}
	schema, _ := json.Marshal(map[string]any{ // cannot fail: the values are strings and a bool
		"type": "object", "properties": map[string]any{"uri": uriSchema}, "required": []string{"uri"}, "additionalProperties": false,
	})
	return catalog.Tool{
		Server: server, Original: name, Title: "Read a resource", Description: wire.Truncate(description.String(), catalog.MaxDescription),
		InputSchema: schema, Annotations: &catalog.Annotations{ReadOnly: true, Idempotent: true}, ReadsResources: true,
	}
}

// readURI returns the URI in args, the arguments of the read tool. It returns a failure if args have no URI, or if the
// configuration does not allow the resource: the model may write a URI that was not listed.
func (s *server) readURI(args json.RawMessage) (string, *transport.Failure) {
	var decoded struct {
		URI string `json:"uri"`
	}
	if json.Unmarshal(args, &decoded) != nil || decoded.URI == "" {
		return "", &transport.Failure{Kind: InvalidArguments, Public: "missing required field: uri", NotRun: true}
	}
	if !s.cfg.AllowsResource(decoded.URI) {
		return "", &transport.Failure{Kind: InvalidArguments, Public: "no resource with that URI may be read", NotRun: true}
	}
	return decoded.URI, nil
}
