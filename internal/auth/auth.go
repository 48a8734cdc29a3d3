// Package auth decides who is calling and what they may do.
//
// A Verifier verifies a request's bearer JWT (RFC 6750, RFC 9068) with the issuer's keys (RFC 7517), and returns the
// caller's Identity. Rules say which servers, tools and models an Identity may use. Package auth/token gets the tokens
// that the service itself sends.
//
//	verifier, err := auth.NewVerifier(auth.VerifierConfig{Issuer: …, Audience: …, JWKSURL: …})
//	defer verifier.Close()
//
//	token, err := auth.FromRequest(r)                // for every request
//	id, err := verifier.Verify(ctx, token)
//	status, header := auth.Challenge(err, metadata)  // if either failed
//	access := rules.Of(id)
//	rule, ok := access.AllowsTool("crm", "crm_delete")
//
// Verify waits, until its context ends, only if there are no keys or if the token's key is new. Everything in this
// package may be used concurrently. Tokens and secrets are values of type Secret, so formatting one never shows it.
package auth

import (
	"encoding/json"
	"time"
)

// Identity describes a caller. The zero Identity is the anonymous caller of a service without inbound authentication. A
// run belongs to an (Issuer, Subject).
type Identity struct {
	Issuer  string
	Subject string // the token's sub, or "client:" and the client_id if there is no sub
	Scopes  []string
	Expiry  time.Time // the token's exp; zero for the anonymous caller
	// Group is the value of the claim VerifierConfig.LimitClaim, or "" if the token has none. Limits count all callers
	// of one group together. The group grants nothing.
	Group string
	// Claims has all claims of the token as JSON, for Rules.
	Claims map[string]json.RawMessage
	// Token is the token that the caller sent. It may be used only as the subject_token of an exchange (RFC 8693),
	// because the MCP specification forbids passing it on.
	Token Secret
	// Address is an anonymous caller's remote address. Limits per caller use it to count anonymous callers separately.
	// The address grants nothing.
	Address string
}

// Key returns the key by which limits count a caller: the issuer and the group, if the caller has a group, or else the
// issuer and the subject. For an anonymous caller, it is the address.
func (id Identity) Key() string {
	if id.Group != "" {
		return id.Issuer + "\x01" + id.Group // not \x00, so that no subject has the same key
	}
	if id.Subject == "" {
		return id.Address
	}
	return id.Issuer + "\x00" + id.Subject
}

// Until returns the time from which Verify rejects the token: its exp plus the clock skew that Verify allows. It
// returns the zero time for an anonymous caller.
func (id Identity) Until() time.Time {
	if id.Expiry.IsZero() {
		return time.Time{}
	}
	return id.Expiry.Add(clockSkew)
}

// Owns reports whether id is the same caller as owner, so that id may use a run that belongs to owner.
func (id Identity) Owns(owner Identity) bool {
	return id.Issuer == owner.Issuer && id.Subject == owner.Subject
}
