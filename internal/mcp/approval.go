package mcp

import (
	"sync"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// needsApproval reports whether a person must agree to calls of t. What the server says of
// its tool counts only where the operator goes by it, and takes nothing away from what
// the operator names.
func needsApproval(s *config.Server, t Tool) bool {
	switch {
	case t.signsIn: // ours, and the person's own doing
		return false
	case s.Approval == config.ApproveAlways:
		return true
	case s.Approval == config.ApproveDestructive && t.destructive():
		return true
	}
	return matches(s.ApproveTools, t.Original, plainName(s, t.Original), serverName(s, t.Original), t.Name)
}

// destructive is MCP's reading of the hints (2025-11-25 schema, ToolAnnotations): a tool
// that does not say that it only reads is taken to destroy, unless it says otherwise.
func (t Tool) destructive() bool {
	a := t.Annotations
	switch {
	case a == nil:
		return true
	case a.ReadOnly:
		return false
	}
	return a.Destructive == nil || *a.Destructive
}

// version is the digest of a tool's definition, made when somebody first asks: a
// server's whole list can be tens of megabytes, of which few are ever called.
type version struct {
	once sync.Once
	sum  string
}

// Version is the SHA-256 in hex of the tool's definition: all of it that reaches a model
// or a decision, and where its server is. It is what mcp.pins.json has. "" for a Tool that no
// Client gave out.
func (t Tool) Version() string {
	if t.version == nil {
		return ""
	}
	t.version.once.Do(func() { t.version.sum = define(t.cfg, t).digest() })
	return t.version.sum
}

// unapproved refuses a call that a person has not agreed to, or not to this: the tool's
// definition has changed since he was asked.
func (b binding) unapproved(call Call) *transport.Failure {
	switch {
	case !b.NeedsApproval || call.Approved != "" && call.Approved == b.Version():
		return nil
	case call.Approved == "":
		return &transport.Failure{Kind: Denied, Public: "the call needs a person's approval, which it does not have", NotRun: true}
	}
	return &transport.Failure{Kind: Denied, Public: "the tool has changed since a person approved the call", NotRun: true}
}
