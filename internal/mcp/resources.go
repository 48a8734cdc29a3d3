package mcp

import (
	"context"
	"encoding/json"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxResources bounds each of the two lists of a server's resources: those with a URI, and
// those with a URI template.
const maxResources = 256

// resource is a resource of a server, or a template of resources.
type resource struct {
	URI         string `json:"uri"`
	Template    string `json:"uriTemplate"`
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
}

// address returns the URI or the template.
func (r *resource) address() string {
	if r.Template != "" {
		return r.Template
	}
	return r.URI
}

// listResources returns the server's resources and templates whose address is allowed. The
// session subscribes to those resources.
func (s *session) listResources(deadline time.Time, allowed func(address string) bool) ([]resource, *transport.Failure) {
	listed, f := collectPages("resources", maxResources, func(cursor string) (json.RawMessage, *transport.Failure) {
		return s.doRequest(context.Background(), nil, deadline, func(x *exchange) (json.RawMessage, *transport.Failure) {
			return ask(x, "resources/list", &sdk.ListResourcesParams{Cursor: cursor})
		})
	})
	if f != nil {
		return nil, f
	}
	templates, f := collectPages("resourceTemplates", maxResources, func(cursor string) (json.RawMessage, *transport.Failure) {
		return s.doRequest(context.Background(), nil, deadline, func(x *exchange) (json.RawMessage, *transport.Failure) {
			return ask(x, "resources/templates/list", &sdk.ListResourceTemplatesParams{Cursor: cursor})
		})
	})
	if f != nil {
		return nil, f
	}
	var out []resource
	for _, raw := range append(listed, templates...) {
		var r resource
		if json.Unmarshal(raw, &r) == nil && allowed(r.address()) {
			out = append(out, r)
			if r.Template == "" {
				s.resources.want(r.URI)
			}
		}
	}
	return out, nil
}

// resourceRead is one read of a resource in a session.
type resourceRead struct {
	uri     string
	context map[string]string // of the call: results of different contexts are not shared
	meta    sdk.Meta          // readResource writes to it
	callHandlers
}

// readResource sends a resources/read by x and returns its result as received, or the result
// of an earlier read that is known to be current. It handles messages as callTool does.
func (s *session) readResource(x *exchange, read resourceRead) (json.RawMessage, *transport.Failure) {
	return s.withHandlers(x, read.callHandlers, read.meta, func() (json.RawMessage, *transport.Failure) {
		key := newCacheKey(read.uri, read.context)
		cached, version := s.resources.lookup(key)
		if cached != nil {
			return cached, nil
		}
		raw, f := x.answerInputs(func(in sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			return ask(x, methodRead, &sdk.ReadResourceParams{Meta: read.meta, URI: read.uri, InputResponses: in, RequestState: state})
		})
		if f != nil {
			return nil, f
		}
		var header resultHeader
		if json.Unmarshal(raw, &header) == nil && header.isComplete() {
			s.resources.want(read.uri)
			s.resources.store(key, raw, s.ttl(&header), version)
		}
		return raw, nil
	})
}
