package mcp

import (
	"encoding/json"
	"errors"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	// codeURLElicitationRequired is the error of a server that does nothing before the person
	// has been to a web page (URLElicitationRequired, 2025-11-25 client/elicitation).
	codeURLElicitationRequired = -32042
	maxElicitationURLs         = 8 // of one error
)

// requiredElicitations returns what a URLElicitationRequired error asks the person for; nil
// if f is another error, or one of its URLs is not safe to go to, since all of them are
// required.
func requiredElicitations(f *transport.Failure) []Elicitation {
	e, ok := errors.AsType[*jsonrpc.Error](f.Err)
	if !ok || e.Code != codeURLElicitationRequired {
		return nil
	}
	var data struct {
		Elicitations []struct {
			Mode    string `json:"mode"`
			Message string `json:"message"`
			URL     string `json:"url"`
		} `json:"elicitations"`
	}
	if json.Unmarshal(e.Data, &data) != nil || len(data.Elicitations) > maxElicitationURLs {
		return nil
	}
	var required []Elicitation
	for _, r := range data.Elicitations {
		if r.Mode != ElicitURL || checkElicitationURL(r.URL) != nil {
			return nil
		}
		required = append(required, Elicitation{Mode: ElicitURL, URL: r.URL, Message: elicitationMessage(r.Message)})
	}
	return required
}
