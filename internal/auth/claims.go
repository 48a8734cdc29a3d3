package auth

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// claims are the claims that we read of a JWT: RFC 7519 section 4.1, and client_id
// and scope of RFC 9068. golang-jwt's own RegisteredClaims won't do: they match
// names in any case, take the last of two, and turn exp 1e300 into whatever
// converting that to an int64 gives on the processor at hand.
type claims struct {
	all                       object
	issuer, subject, clientID string
	party                     string // azp: the client that the token was issued to
	audience                  []string
	scopes                    []string
	expires                   *jwt.NumericDate
	notBefore                 *jwt.NumericDate
	issuedAt                  *jwt.NumericDate
}

// UnmarshalJSON implements json.Unmarshaler. A claim of the wrong type is an error,
// not an absent claim.
func (c *claims) UnmarshalJSON(data []byte) error {
	o, err := parseObject(data)
	if err != nil {
		return err
	}
	c.all = o
	for name, to := range map[string]*string{"iss": &c.issuer, "sub": &c.subject, "client_id": &c.clientID, "azp": &c.party} {
		if *to, err = o.text(name); err != nil {
			return err
		}
	}
	for name, to := range map[string]**jwt.NumericDate{"exp": &c.expires, "nbf": &c.notBefore, "iat": &c.issuedAt} {
		if *to, err = o.date(name); err != nil {
			return err
		}
	}
	if c.audience, err = o.texts("aud"); err != nil {
		return err
	}
	c.scopes, err = o.scopes()
	return err
}

// date is the NumericDate (RFC 7519 section 2) of that name, nil if there is none.
// Only a number will do, and only one between 1970 and the year 9999.
func (o object) date(name string) (*jwt.NumericDate, error) {
	const yearTenThousand = 253402300800
	raw, ok := o[name]
	if !ok {
		return nil, nil
	}
	seconds, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !(seconds >= 0 && seconds < yearTenThousand) {
		return nil, errJSON
	}
	return jwt.NewNumericDate(time.Unix(int64(seconds), 0)), nil
}

// scopes are those of scope (RFC 8693 section 4.2: one string, spaces between) or,
// where there is none, of scp, which some issuers write, as a list or like scope.
func (o object) scopes() ([]string, error) {
	name := "scope"
	if !o.has(name) {
		name = "scp"
	}
	list, err := o.texts(name)
	if err != nil {
		return nil, err
	}
	return strings.Fields(strings.Join(list, " ")), nil
}

// identity is who c speaks of; ok is false if c names nobody. A token that a service
// got for itself may have no sub (RFC 9068 section 2.2 asks for one, many issuers
// don't write it): then the client is the subject.
func (c *claims) identity() (id Identity, ok bool) {
	id = Identity{Issuer: c.issuer, Subject: c.subject, Scopes: c.scopes, Claims: c.all}
	if id.Subject == "" {
		id.Subject = c.clientID
	}
	if c.expires != nil {
		id.Expiry = c.expires.Time
	}
	return id, strings.TrimSpace(id.Subject) != ""
}

// jwt.Claims, for golang-jwt's validator.

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
