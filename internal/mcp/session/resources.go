package session

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"answerd/internal/mcp/transport"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxResources is the maximum length of each of the two lists of a server's resources: those with a URI, and those
// with a URI template.
const maxResources = 256

// Resource is a server's resource, or a template for resources. Either URI or Template is set.
type Resource struct {
	URI         string `json:"uri"`
	Template    string `json:"uriTemplate"`
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
}

// Address returns the URI of a resource, or the URI template of a template.
func (r *Resource) Address() string { return cmp.Or(r.Template, r.URI) }

// ListResources returns the server's resources and templates for whose address allowed returns true. It looks at no
// more than maxResources of each kind; cut is that of CollectPages. It makes the session subscribe to changes of the
// returned resources, but not of templates. The pool must have CacheResources.
func (s *Session) ListResources(
	deadline time.Time, allowed func(address string) bool,
) (resources []Resource, cut string, _ *transport.Failure) {
	listed, cut, failure := s.collectResources("resources", "resources/list", deadline)
	if failure != nil {
		return nil, "", failure
	}
	templates, cutTemplates, failure := s.collectResources("resourceTemplates", "resources/templates/list", deadline)
	if failure != nil {
		return nil, "", failure
	}
	for _, raw := range append(listed, templates...) {
		var r Resource
		if json.Unmarshal(raw, &r) != nil || !allowed(r.Address()) {
			continue
		}
		hasSameAddress := func(other Resource) bool { return other.Address() == r.Address() }
		if slices.ContainsFunc(resources, hasSameAddress) {
			continue
		}
		resources = append(resources, r)
		if r.Template == "" {
			s.resources.wantSubscription(r.URI)
		}
	}
	return resources, cmp.Or(cut, cutTemplates), nil
}

// collectResources requests a list with method and returns what CollectPages returns for its member.
func (s *Session) collectResources(member, method string, deadline time.Time) ([]json.RawMessage, string, *transport.Failure) {
	return CollectPages(member, maxResources, func(cursor string) (json.RawMessage, *transport.Failure) {
		ctx := context.Background() // not a call's context, because the list is for all calls
		return s.Do(ctx, nil, deadline, func(request *Request) (json.RawMessage, *transport.Failure) {
			// Both lists have the same params.
			return callMethod(request, method, &sdk.ListResourcesParams{Cursor: cursor})
		})
	})
}

// ResourceRead is one read of a resource in a session.
type ResourceRead struct {
	URI   string
	Scope map[string]string // what else the content depends on: a cached result is used only for the same Scope
	Meta  sdk.Meta          // not nil; ReadResource writes to it
	Handlers
}

// ReadResource returns the result of resources/read as received. If the session's cache has a current result, it sends
// nothing. Otherwise it sends request, as CallTool does, and caches the result. If the user must answer first
// (Handlers.Suspend), the result is nil and request.InputRequired is set. The pool must have CacheResources.
func (s *Session) ReadResource(request *Request, read ResourceRead) (json.RawMessage, *transport.Failure) {
	return s.withHandlers(request, read.Handlers, read.Meta, func() (json.RawMessage, *transport.Failure) {
		key := newCacheKey(read.URI, read.Scope)
		cached, version := s.resources.lookup(key)
		if cached != nil {
			return cached, nil
		}
		sendRead := func(answers sdk.InputResponseMap, state string) (json.RawMessage, *transport.Failure) {
			params := &sdk.ReadResourceParams{Meta: read.Meta, URI: read.URI, InputResponses: answers, RequestState: state}
			return callMethod(request, methodRead, params)
		}
		raw, failure := request.answerInputs(read.Handlers, sendRead)
		if failure != nil || request.InputRequired != nil {
			return nil, failure
		}
		var header resultHeader
		if json.Unmarshal(raw, &header) != nil || !header.isComplete() {
			return raw, nil
		}
		s.resources.wantSubscription(read.URI)
		if !request.serverAsked.Load() { // otherwise the result may depend on this user's answers
			s.resources.store(key, raw, s.ttl(&header), version)
		}
		return raw, nil
	})
}
