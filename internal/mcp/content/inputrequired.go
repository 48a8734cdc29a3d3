package content

import (
	"bytes"
	"encoding/json"
	"time"
)

// Bounds of one input_required result, in bytes. A client stores it until a person has answered.
const (
	MaxRequestState  = 64 << 10
	MaxInputRequests = 512 << 10 // of all requests together
)

// InputRequired is a result that is not complete: the server wants the same request again, with
// the answers to Requests and with State (2026-07-28 basic/utilities/mrtr). Any session may send
// it.
type InputRequired struct {
	Requests map[string]InputRequest `json:"inputRequests,omitempty"`
	// State is opaque and may be secret, so only the server may get it.
	State string `json:"requestState,omitempty"`
	// RoundTrips is the number of times that the request has been sent so far.
	RoundTrips int `json:"roundTrips,omitempty"`
}

// SignIn is what a call waits for whose user has to sign in to the server first. Any process may send
// the call again with it.
type SignIn struct {
	Server  string    `json:"server"`
	State   string    `json:"state"` // identifies it
	URL     string    `json:"url"`   // that the user's browser opens
	Message string    `json:"message"`
	Expires time.Time `json:"-"` // by the clock of the process that made the call
	// Asked is how often the call has ended that way, this time included.
	Asked int `json:"asked"`
	// InMemory says that only the process that the call was made in can complete it.
	InMemory bool `json:"in_memory,omitempty"`
	// ListsTools says that the call was one of the tool sign_in, which lists the server's tools.
	ListsTools bool `json:"lists_tools,omitempty"`
}

// InputRequest is one request of an InputRequired.
type InputRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// DecodeInputRequired returns what an incomplete result asks for. ok is false for a complete
// result, and for one that neither asks for anything nor has a state.
func DecodeInputRequired(result json.RawMessage) (in *InputRequired, ok bool) {
	if !bytes.Contains(result, []byte(`"input_required"`)) { // do not decode a large result for this
		return nil, false
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
