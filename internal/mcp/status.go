package mcp

import (
	"fmt"
	"time"
)

// State is how a server's connection stands.
type State string

// The states of a server.
const (
	Connecting State = "connecting"
	Connected  State = "connected"
	Degraded   State = "degraded" // connected once, failing now, or its calls are; its last tool list is still offered
	Failed     State = "failed"
	Disabled   State = "disabled"
)

// ServerStatus is one server as GET /servers reports it.
type ServerStatus struct {
	Name     string    `json:"name"`
	Type     string    `json:"type"`
	State    State     `json:"state"`
	Reason   string    `json:"reason,omitempty"` // fit for the caller
	Since    time.Time `json:"since"`
	Protocol string    `json:"protocol_version,omitempty"`
	Tools    int       `json:"tools"`
	// DisabledTools are the server's own names for the tools whose definitions the
	// operator has not accepted (pin), sorted.
	DisabledTools []string `json:"disabled_tools,omitempty"`
}

// ServerError is why a server cannot be used now. Its text is fit for the caller;
// Err is the cause, for the log only, and may be nil.
type ServerError struct {
	Server string
	Reason string
	Err    error
}

func (e *ServerError) Error() string { return fmt.Sprintf("MCP server %s: %s", e.Server, e.Reason) }

func (e *ServerError) Unwrap() error { return e.Err }
