package mcp

import "net/http"

// What the package transport promises, as its servers see it.
const (
	sessionHeader    = "Mcp-Session-Id"
	nameHeader       = "Mcp-Name"
	cancelled        = "notifications/cancelled"
	subprotocol      = "mcp"
	maxServerRequest = 100 // requests of a server that are unanswered at a time
	maxStarts        = 5   // of a process within a minute
	maxResumes       = 8   // GETs in a row that continue one stream
)

// roundTripFunc is a function in the place of a server over HTTP.
type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
