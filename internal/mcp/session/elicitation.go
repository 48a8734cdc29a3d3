package session

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"

	"answerd/internal/auth/fetch"
	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Elicitation is a server's question to the user behind a call.
type Elicitation struct {
	Mode    string          // ElicitForm or ElicitURL
	Message string          // at most 8 KiB
	Schema  json.RawMessage // for ElicitForm: a flat object of texts, numbers, booleans and choices
	URL     string          // for ElicitURL: the page to visit, https or loopback; answerd never fetches it
}

// ElicitationResult is the user's answer to an Elicitation.
type ElicitationResult struct {
	Action  string          // Accept, Decline or Cancel
	Content json.RawMessage // of an accepted form only: a JSON object that Elicitation.Check accepts
}

// The modes of an Elicitation and the actions of its result.
const (
	ElicitForm = "form"
	ElicitURL  = "url"

	Accept  = "accept"
	Decline = "decline"
	Cancel  = "cancel" // dismissed, or not answered in time
)

// Bounds of one elicitation.
const (
	maxElicitationMessage = 8 << 10 // bytes; a longer message is cut
	maxElicitationURL     = 2 << 10 // bytes; a longer URL is refused
	maxFormFields         = 100
)

// decodeElicitation converts p to an Elicitation. form is p's requested schema as received, in which the fields still
// have their order. The error says why the elicitation is not allowed, and is sent to the server.
func decodeElicitation(p *sdk.ElicitParams, form json.RawMessage) (Elicitation, error) {
	elicitation := Elicitation{Mode: cmp.Or(p.Mode, ElicitForm), Message: elicitationMessage(p.Message)}
	if elicitation.Mode == ElicitURL {
		elicitation.URL = p.URL
		return elicitation, checkElicitationURL(p.URL)
	}
	bounded, err := schema.BoundedObject(form)
	if err != nil {
		return elicitation, fmt.Errorf("the requested schema %w", err)
	}
	elicitation.Schema = bounded
	if _, err = elicitation.compileForm(); err != nil {
		return elicitation, err
	}
	elicitation.Schema, err = plainForm(bounded)
	return elicitation, err
}

// elicitationMessage returns s, a server's message, as valid UTF-8 and cut to maxElicitationMessage.
func elicitationMessage(s string) string {
	return wire.Truncate(strings.ToValidUTF8(s, "\uFFFD"), maxElicitationMessage)
}

// checkElicitationURL returns an error if raw is a URL that the user should not visit, since they may type secrets
// there. It accepts https URLs, and http URLs with a loopback host.
func checkElicitationURL(raw string) error {
	u, err := url.Parse(raw)
	hasSpace := strings.ContainsFunc(raw, unicode.IsSpace)
	switch {
	case err != nil, u.Hostname() == "", len(raw) > maxElicitationURL, hasSpace:
		return errors.New("the URL is not a web address")
	case u.User != nil:
		return errors.New("the URL must not hold a user or password")
	case u.Scheme != "https" && !(u.Scheme == "http" && fetch.IsLoopback(u.Hostname())):
		return errors.New("the URL must begin with https://")
	}
	return nil
}

// ContentError lists the fields of a form's content that are wrong. The pointers of Fields (RFC 6901) are relative to
// the content.
type ContentError struct{ Fields []ContentField }

// ContentField is a problem with one field of a form, or of a call's arguments.
type ContentField = schema.Problem

func (e *ContentError) Error() string {
	parts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		parts[i] = strings.TrimPrefix(f.Pointer+": "+f.Detail, ": ")
	}
	return strings.Join(parts, "; ")
}

// compileForm compiles the form's schema, which may have at most maxFormFields fields. References to other documents
// are errors, because nothing is fetched. Recursive references are errors, because no form can show them.
func (e Elicitation) compileForm() (*schema.Schema, error) {
	var fields struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	s, err := schema.Compile(e.Schema)
	if err != nil {
		return nil, fmt.Errorf("the requested schema cannot be used: %w", err)
	}
	if err := json.Unmarshal(e.Schema, &fields); err != nil {
		return nil, errors.New("the requested schema is not a JSON Schema")
	}
	if len(fields.Properties) > maxFormFields {
		return nil, fmt.Errorf("the requested schema has more than %d fields", maxFormFields)
	}
	return s, nil
}

// Check returns nil if content fits e's form and may be the content of an accepted answer. Otherwise it returns a
// *ContentError with all problems. In URL mode, content must be nil.
func (e Elicitation) Check(content json.RawMessage) error {
	if e.Mode == ElicitURL {
		if content != nil {
			return &ContentError{[]ContentField{{Detail: "an address is answered without content"}}}
		}
		return nil
	}
	form, err := e.compileForm()
	if err != nil {
		return &ContentError{[]ContentField{{Detail: err.Error()}}}
	}
	if problems := form.Validate(content); problems != nil {
		return &ContentError{problems}
	}
	return nil
}

const (
	// codeURLElicitationRequired is the error code with which a server refuses a call until the user has visited web
	// pages (URLElicitationRequiredError, 2025-11-25 client/elicitation).
	codeURLElicitationRequired = -32042
	maxElicitationURLs         = 8 // web pages in one error
)

// RequiredElicitations returns the web pages that the user must visit, if failure is a URLElicitationRequiredError. It
// returns nil for any other failure, if there are more than maxElicitationURLs pages, or if any URL is not safe: since
// all pages are required, the others alone would not help.
func RequiredElicitations(failure *transport.Failure) []Elicitation {
	rpcError, ok := errors.AsType[*jsonrpc.Error](failure.Err)
	if !ok || rpcError.Code != codeURLElicitationRequired {
		return nil
	}
	var data struct {
		Elicitations []struct {
			Mode    string `json:"mode"`
			Message string `json:"message"`
			URL     string `json:"url"`
		} `json:"elicitations"`
	}
	if json.Unmarshal(rpcError.Data, &data) != nil || len(data.Elicitations) > maxElicitationURLs {
		return nil
	}
	var required []Elicitation
	for _, page := range data.Elicitations {
		if page.Mode != ElicitURL || checkElicitationURL(page.URL) != nil {
			return nil
		}
		required = append(required, Elicitation{Mode: ElicitURL, URL: page.URL, Message: elicitationMessage(page.Message)})
	}
	return required
}
