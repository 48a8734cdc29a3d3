package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	// codeVisit is the error of a server that does nothing before the person has been to
	// a web page (URLElicitationRequired, 2025-11-25 client/elicitation).
	codeVisit = -32042
	maxVisits = 8 // of one error
)

// visits are the pages that an error wants the person to go to; none if it is another
// error, or says nothing of use.
func visits(f *transport.Failure) []Elicitation {
	e, ok := errors.AsType[*jsonrpc.Error](f.Err)
	if !ok || e.Code != codeVisit {
		return nil
	}
	var w struct {
		Elicitations []struct {
			Mode    string `json:"mode"`
			Message string `json:"message"`
			URL     string `json:"url"`
		} `json:"elicitations"`
	}
	if json.Unmarshal(e.Data, &w) != nil || len(w.Elicitations) > maxVisits {
		return nil
	}
	var out []Elicitation
	for _, v := range w.Elicitations {
		if v.Mode != ElicitURL || checkAskURL(v.URL) != nil {
			return nil // all of them are required
		}
		out = append(out, Elicitation{Mode: ElicitURL, URL: v.URL, Message: wire.Truncate(strings.ToValidUTF8(v.Message, "\uFFFD"), maxQuestion)})
	}
	return out
}

// visited asks the person behind a call to go to the pages, one after the other, and
// reports whether he has agreed to all.
func (s *server) visited(ctx context.Context, call Call, pages []Elicitation) bool {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(s.life, func() { stop(context.Cause(s.life)) })()
	for _, page := range pages {
		res, err := call.Elicit(ctx, page)
		if err != nil || res.Action != Accept || ctx.Err() != nil {
			return false
		}
	}
	return true
}
