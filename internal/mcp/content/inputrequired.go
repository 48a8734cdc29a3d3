package content

import (
	"bytes"
	"encoding/json"
	"time"
)

// Limits for one input_required result, in bytes. answerd stores the result until a person has answered.
const (
	MaxRequestState  = 64 << 10
	MaxInputRequests = 512 << 10 // for all requests together
)

// InputRequired is a result that is not complete. The server expects the same request again, together with State and
// the answers to Requests (2026-07-28 basic/utilities/mrtr). The client may send it in any session.
type InputRequired struct {
	Requests map[string]InputRequest `json:"inputRequests,omitempty"`
	// State is opaque and may be secret. It must be sent only to the server that it came from.
	State string `json:"requestState,omitempty"`
	// RoundTrips is how many times the request has been sent so far.
	RoundTrips int `json:"roundTrips,omitempty"`
}

// SignIn describes a user's sign-in at an MCP server that a call is waiting for. After the user has signed in, the call
// is sent again with the SignIn. Any process can do that unless InMemory is set.
type SignIn struct {
	Server  string    `json:"server"`  // the server's name
	State   string    `json:"state"`   // identifies the sign-in
	URL     string    `json:"url"`     // the page that the user's browser opens
	Message string    `json:"message"` // for the user
	Expires time.Time `json:"-"`       // by the clock of the process that made the call
	// Asked is how many times the call has ended with a SignIn, including this time.
	Asked int `json:"asked"`
	// InMemory means that only the process that made the call can complete the sign-in.
	InMemory bool `json:"in_memory,omitempty"`
	// ListsTools means that the tool sign_in was called, which lists the server's tools after the sign-in.
	ListsTools bool `json:"lists_tools,omitempty"`
}

// InputRequest is one of the server's requests in an InputRequired.
type InputRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// DecodeInputRequired decodes a result of type input_required. It does not set RoundTrips. ok is false if the result
// has another type, or if it has neither inputRequests nor requestState and so asks for nothing.
func DecodeInputRequired(result json.RawMessage) (in *InputRequired, ok bool) {
	if !bytes.Contains(result, []byte(`"input_required"`)) {
		return nil, false // the usual case: avoid decoding a result that may be large
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
