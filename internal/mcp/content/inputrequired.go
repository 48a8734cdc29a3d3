package content

import (
	"bytes"
	"encoding/json"
	"time"
)

// Bounds of one input_required result, in bytes. answerd stores the result until a person has answered.
const (
	MaxRequestState  = 64 << 10
	MaxInputRequests = 512 << 10 // of all requests together
)

// InputRequired is a result that is not complete: the server wants the same request again, with
// the answers to Requests and with State (2026-07-28 basic/utilities/mrtr). The request may be sent again in any
// session.
type InputRequired struct {
	Requests map[string]InputRequest `json:"inputRequests,omitempty"`
	// State is opaque and may be secret, so only the server may get it.
	State string `json:"requestState,omitempty"`
	// RoundTrips is the number of times that the request has been sent so far.
	RoundTrips int `json:"roundTrips,omitempty"`
}

// SignIn describes the sign-in at an MCP server for which a call waits. After the user has signed in, the call is sent
// again with the SignIn, by any process unless InMemory is set.
type SignIn struct {
	Server  string    `json:"server"`  // the server's name
	State   string    `json:"state"`   // identifies the sign-in
	URL     string    `json:"url"`     // the page that the user's browser opens
	Message string    `json:"message"` // for the user
	Expires time.Time `json:"-"`       // by the clock of the process that made the call
	// Asked is the number of times that the call has ended with a SignIn, this time included.
	Asked int `json:"asked"`
	// InMemory says that only the process that made the call can complete the sign-in.
	InMemory bool `json:"in_memory,omitempty"`
	// ListsTools says that the call was one of the tool sign_in, which lists the server's tools.
	ListsTools bool `json:"lists_tools,omitempty"`
}

// InputRequest is one request of an InputRequired.
type InputRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// DecodeInputRequired decodes a result of type input_required. The caller sets RoundTrips. ok is false for a result of
// another type, and for a result without inputRequests and requestState, which asks for nothing.
func DecodeInputRequired(result json.RawMessage) (in *InputRequired, ok bool) {
	if !bytes.Contains(result, []byte(`"input_required"`)) {
		return nil, false // the usual case, without decoding a result that may be large
	}
	var decoded struct {
		ResultType string                  `json:"resultType"`
		Requests   map[string]InputRequest `json:"inputRequests"`
		State      string                  `json:"requestState"`
	}
	if json.Unmarshal(result, &decoded) != nil || decoded.ResultType != "input_required" {
		return nil, false
	}
	if decoded.Requests == nil && decoded.State == "" {
		return nil, false
	}
	return &InputRequired{Requests: decoded.Requests, State: decoded.State}, true
}

// IsTooLarge reports whether in exceeds MaxRequestState or MaxInputRequests.
func (in *InputRequired) IsTooLarge() bool {
	size := 0
	for key, r := range in.Requests {
		size += len(key) + len(r.Method) + len(r.Params)
	}
	return len(in.State) > MaxRequestState || size > MaxInputRequests
}
