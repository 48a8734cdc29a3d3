// Package auth knows who is calling, and whose token we send.
//
// Inbound, a Verifier turns the bearer JWT of a request (RFC 6750, RFC 9068) into
// an Identity, and Rules say what it may use. Outbound, a TokenSource gives the bearer token that goes to an MCP
// server: ClientCredentials fetches the service's own JWT from the IAM (RFC 6749
// section 4.4) with a secret given directly or kept in OCI Vault; Exchange trades a
// caller's token for one that a server takes on his behalf (RFC 8693); Static is a
// fixed token.
//
//	src, err := auth.NewClientCredentials(auth.ClientCredentialsConfig{TokenURL: …, ClientID: …, Secret: …})
//	defer src.Close()
//	tok, err := src.Token(ctx)        // cached, refreshed before it expires
//	tok, err = src.Renew(ctx, tok)    // after a server answered 401 to tok
//
//	ex, err := auth.NewExchange(auth.ExchangeConfig{Issuer: …, ClientID: …, Secret: …, Resource: …})
//	defer ex.Close()
//	tok, err = ex.For(id).Token(ctx)  // for the caller that id speaks of
//
//	token, err := auth.FromRequest(r)            // and inbound, for every request:
//	id, err := verifier.Verify(ctx, token)
//	status, header := auth.Challenge(err, metadata)  // if either failed
//	access := rules.Of(id)                       // what id may use
//
// However many callers wait, one request for a token is under way; each caller waits
// under its own context. Everything here may be used concurrently. No token and no
// secret is ever formatted: both are a Secret.
package auth

import (
	"context"
	"encoding/json"
	"time"
)

// TokenSource gives the bearer token of outgoing requests.
type TokenSource interface {
	// Token returns a token that is valid now. It waits, under ctx, only while
	// there is none.
	Token(ctx context.Context) (Secret, error)
	// Renew returns a token other than rejected, which a server refused with
	// 401. Callers that bring the same rejected token share one request, and one
	// that comes late gets the token that the others fetched.
	Renew(ctx context.Context, rejected Secret) (Secret, error)
}

// Identity is who is calling. The zero Identity is the anonymous caller of a
// service that runs without inbound authentication. A run belongs to its
// (Issuer, Subject).
type Identity struct {
	Issuer  string
	Subject string
	Scopes  []string
	Expiry  time.Time // the token's exp; zero for the anonymous caller
	// Claims are all claims of the token, as it has them, for Rules.
	Claims map[string]json.RawMessage
	// Token is what the caller brought. It is the subject_token of an Exchange and
	// nothing else: passing it on is what the MCP specification forbids.
	Token Secret
	// Address is where the anonymous caller of a connection comes from, by which he is
	// told from others where callers are counted, and for nothing else. Nobody is let in
	// by it.
	Address string
}

// Key is what a caller is counted by: who he is, or, for one without a name, the address
// that he calls from.
func (id Identity) Key() string {
	if id.Subject == "" {
		return id.Address
	}
	return id.Issuer + "\x00" + id.Subject
}

// Until is when the token ends here: its exp and the clock skew that Verify allows. It is
// the zero time for the anonymous caller.
func (id Identity) Until() time.Time {
	if id.Expiry.IsZero() {
		return time.Time{}
	}
	return id.Expiry.Add(clockSkew)
}

// Owns reports whether a run of owner belongs to id.
func (id Identity) Owns(owner Identity) bool {
	return id.Issuer == owner.Issuer && id.Subject == owner.Subject
}
