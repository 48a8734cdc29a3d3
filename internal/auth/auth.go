// Package auth decides who is calling and what they may do.
//
// A Verifier turns the bearer JWT of a request (RFC 6750, RFC 9068) into an Identity, with
// the issuer's keys (RFC 7517). Rules say which servers, tools and models an Identity may
// use. The tokens that the service sends itself are in auth/token.
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
// Verify waits, under its context, only while there are no keys, or while the token's key is a new
// one. Everything in this package may be used concurrently. Tokens and secrets are values of type
// Secret, so formatting one never shows it.
package auth

import (
	"encoding/json"
	"time"
)

// Identity describes a caller. The zero Identity is the anonymous caller of a service that runs
// without inbound authentication. A run belongs to an (Issuer, Subject).
type Identity struct {
	Issuer  string
	Subject string // a user's sub, or "client:" and the client_id of a client without one
	Scopes  []string
	Expiry  time.Time // the token's exp; zero for the anonymous caller
	// Group is the value of VerifierConfig.LimitClaim; "" if the token has none. Limits count all callers
	// of one group together; it grants nothing.
	Group string
	// Claims has all claims of the token as JSON, for Rules.
	Claims map[string]json.RawMessage
	// Token is the token that the caller sent. It may only be the subject_token of an
	// exchange (RFC 8693): the MCP specification forbids passing it on.
	Token Secret
	// Address is the remote address of an anonymous caller. Limits per caller use it to
	// count anonymous callers separately; it grants nothing.
	Address string
}

// Key returns the key by which limits count a caller: the issuer with the group if the caller has a group, else the
// issuer with the subject, else the address of an anonymous caller.
func (id Identity) Key() string {
	if id.Group != "" {
		return id.Issuer + "\x01" + id.Group // not \x00, so that no subject has the same key
	}
	if id.Subject == "" {
		return id.Address
	}
	return id.Issuer + "\x00" + id.Subject
}

// Until returns the time from which Verify refuses the token: its exp plus the clock skew
// that Verify allows. It returns the zero time for the anonymous caller.
func (id Identity) Until() time.Time {
	if id.Expiry.IsZero() {
		return time.Time{}
	}
	return id.Expiry.Add(clockSkew)
}

// Owns reports whether a run that belongs to owner belongs to id.
func (id Identity) Owns(owner Identity) bool {
	return id.Issuer == owner.Issuer && id.Subject == owner.Subject
}
