package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Elicitation is a server's question to the person behind a call.
type Elicitation struct {
	Mode    string          // ElicitForm or ElicitURL
	Message string          // at most 8 KiB
	Schema  json.RawMessage // of a form: a flat object of texts, numbers, booleans and choices
	URL     string          // where to go: https, or loopback. We never fetch it.
	// Done, if set, is closed when the person has been there: that is an answer too, and
	// stands for Accept.
	Done <-chan struct{}
}

// ElicitationResult is what the person did.
type ElicitationResult struct {
	Action  string          // Accept, Decline or Cancel
	Content json.RawMessage // a JSON object that Elicitation.Check accepts; of an accepted form only
}

// The modes of an Elicitation and the actions of its result.
const (
	ElicitForm = "form"
	ElicitURL  = "url"

	Accept  = "accept"
	Decline = "decline"
	Cancel  = "cancel" // dismissed, or nobody answered
)

const (
	maxQuestion = 8 << 10 // bytes of a message; a longer one is cut
	maxAskURL   = 2 << 10 // bytes; a longer one is refused
)

// elicit is the SDK's handler for elicitation/create. Where nobody is there to answer
// it declines.
func elicit(ctx context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
	asked := requestOf(ctx, r.Params.Meta)
	e, err := decodeElicitation(r.Params, asked.schema(r.Params.RequestedSchema))
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	if asked.x == nil || asked.x.talk == nil || asked.x.talk.elicit == nil {
		return &sdk.ElicitResult{Action: Decline}, nil
	}
	qctx, done, ok := asked.x.talk.begin(ctx, true)
	if !ok {
		return &sdk.ElicitResult{Action: Cancel}, nil
	}
	defer done()
	res, err := asked.x.talk.elicit(qctx, e)
	if err != nil {
		return &sdk.ElicitResult{Action: Cancel}, nil
	}
	out := &sdk.ElicitResult{Action: res.Action}
	if res.Action == Accept && e.Mode == ElicitForm {
		if err := json.Unmarshal(res.Content, &out.Content); err != nil {
			return &sdk.ElicitResult{Action: Cancel}, nil
		}
	}
	return out, nil
}

// schema is the requested schema of r as it was received: a form is filled in in the
// order of its fields, which the SDK's reading of it has lost.
func (r request) schema(read any) json.RawMessage {
	var p struct {
		Schema json.RawMessage `json:"requestedSchema"`
	}
	if json.Unmarshal(r.params, &p) == nil && p.Schema != nil {
		return p.Schema
	}
	raw, _ := json.Marshal(read) // it was decoded from JSON
	return raw
}

// decodeElicitation checks what a server asks.
func decodeElicitation(p *sdk.ElicitParams, form json.RawMessage) (Elicitation, error) {
	e := Elicitation{Mode: p.Mode, Message: wire.Truncate(strings.ToValidUTF8(p.Message, "\uFFFD"), maxQuestion)}
	if e.Mode == "" {
		e.Mode = ElicitForm
	}
	if e.Mode == ElicitURL {
		e.URL = p.URL
		return e, checkAskURL(p.URL)
	}
	s, err := inputSchema(form)
	if err != nil {
		return e, fmt.Errorf("the requested schema %w", err)
	}
	e.Schema = s
	_, err = e.form()
	return e, err
}

// checkAskURL refuses addresses that nobody should be sent to: a person is about to
// type secrets there.
func checkAskURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Hostname() == "" || len(raw) > maxAskURL || strings.ContainsFunc(raw, unicode.IsSpace):
		return errors.New("the URL is no web address")
	case u.User != nil:
		return errors.New("the URL must not hold a user or password")
	case u.Scheme != "https" && !(u.Scheme == "http" && config.IsLoopback(u.Hostname())):
		return errors.New("the URL must begin with https://")
	}
	return nil
}
