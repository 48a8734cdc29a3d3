package auth

import (
	"cmp"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/auth/strictjson"
)

// claims has the claims of a JWT that the service uses: those of RFC 7519 section 4.1, and client_id and scope of RFC
// 9068.
//
// The type RegisteredClaims of golang-jwt is not used for three reasons. It ignores the case of names. It takes the
// last of two claims with the same name. It converts an exp of 1e300 to an int64, whose value then depends on the
// processor.
type claims struct {
	all                       strictjson.Object
	issuer, subject, clientID string
	authorizedParty           string // azp: the client that the token was issued to
	audience                  []string
	scopes                    []string
	expires                   *jwt.NumericDate
	notBefore                 *jwt.NumericDate
	issuedAt                  *jwt.NumericDate
}

// UnmarshalJSON implements json.Unmarshaler. It returns an error if a claim has the wrong type, rather than treating
// the claim as absent.
func (c *claims) UnmarshalJSON(data []byte) error {
	object, err := strictjson.Parse(data)
	if err != nil {
		return err
	}
	c.all = object
	texts := map[string]*string{"iss": &c.issuer, "sub": &c.subject, "client_id": &c.clientID, "azp": &c.authorizedParty}
	for name, to := range texts {
		if *to, err = object.String(name); err != nil {
			return err
		}
	}
	for name, to := range map[string]**jwt.NumericDate{"exp": &c.expires, "nbf": &c.notBefore, "iat": &c.issuedAt} {
		if *to, err = numericDate(object, name); err != nil {
			return err
		}
	}
	if c.audience, err = object.Strings("aud"); err != nil {
		return err
	}
	c.scopes, err = scopesOf(object)
	return err
}

// numericDate returns the NumericDate (RFC 7519 section 2) in the claim name, or nil if there is no such claim. It
// returns an error unless the claim is a number for a time between 1970 and the year 9999, which time.Time can
// represent.
func numericDate(o strictjson.Object, name string) (*jwt.NumericDate, error) {
	const yearTenThousand = 253402300800 // in seconds since 1970
	raw, ok := o[name]
	if !ok {
		return nil, nil
	}
	seconds, err := strconv.ParseFloat(string(raw), 64)
	isInRange := seconds >= 0 && seconds < yearTenThousand // false for NaN
	if err != nil || !isInRange {
		return nil, strictjson.ErrShape
	}
	return jwt.NewNumericDate(time.Unix(int64(seconds), 0)), nil
}

// scopesOf returns the scopes in the claim scope, which is a string of scopes separated by spaces (RFC 8693 section
// 4.2). If there is no such claim, it reads scp, which some issuers use instead, as a list or a string.
func scopesOf(o strictjson.Object) ([]string, error) {
	name := "scope"
	if !o.Has(name) {
		name = "scp"
	}
	list, err := o.Strings(name)
	if err != nil {
		return nil, err
	}
	return strings.Fields(strings.Join(list, " ")), nil
}

// toIdentity returns the caller that the claims identify. ok is false if they identify neither a user nor a client.
//
// A token that a client got for itself may have no sub. RFC 9068 section 2.2 requires one, but many issuers leave it
// out. The client is then the subject. Because a client could choose a user's id as its own (RFC 9068 section 5), a
// client's subject gets the prefix "client:". A sub that itself begins with "client:" or "user:" gets the prefix
// "user:".
func (c *claims) toIdentity() (id Identity, ok bool) {
	id = Identity{Issuer: c.issuer, Subject: c.subject, Scopes: c.scopes, Claims: c.all}
	switch {
	case id.Subject == "":
		id.Subject = clientPrefix + c.clientID
	case strings.HasPrefix(id.Subject, clientPrefix) || strings.HasPrefix(id.Subject, userPrefix):
		id.Subject = userPrefix + id.Subject
	}
	if c.expires != nil {
		id.Expiry = c.expires.Time
	}
	return id, strings.TrimSpace(cmp.Or(c.subject, c.clientID)) != ""
}

// clientPrefix and userPrefix distinguish the subjects of clients and users (see toIdentity).
const (
	clientPrefix = "client:"
	userPrefix   = "user:"
)

// UnverifiedExpiry returns the exp of token. ok is false if token is not a JWT or has no exp. It does not check the
// signature. It is for tokens that the service received from an issuer and that others will verify.
func UnverifiedExpiry(token string) (time.Time, bool) {
	var c claims
	_, _, err := jwt.NewParser().ParseUnverified(token, &c)
	// ErrTokenUnverifiable means that the algorithm is unknown. The parser decodes the claims before that.
	isDecoded := err == nil || errors.Is(err, jwt.ErrTokenUnverifiable)
	if !isDecoded || c.expires == nil {
		return time.Time{}, false
	}
	return c.expires.Time, true
}

// The methods below implement jwt.Claims for golang-jwt's validator. They return nil or "" if the token lacks the
// claim. The parser's options say which claims are required. The errors are always nil, because UnmarshalJSON has
// already rejected claims that cannot be read.

func (c *claims) GetExpirationTime() (*jwt.NumericDate, error) { return c.expires, nil }
func (c *claims) GetIssuedAt() (*jwt.NumericDate, error)       { return c.issuedAt, nil }
func (c *claims) GetNotBefore() (*jwt.NumericDate, error)      { return c.notBefore, nil }
func (c *claims) GetIssuer() (string, error)                   { return c.issuer, nil }
func (c *claims) GetSubject() (string, error)                  { return c.subject, nil }
func (c *claims) GetAudience() (jwt.ClaimStrings, error)       { return c.audience, nil }

var (
	_ jwt.Claims       = (*claims)(nil)
	_ json.Unmarshaler = (*claims)(nil)
)
