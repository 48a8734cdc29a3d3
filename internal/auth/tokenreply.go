package auth

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	maxTokenReply = 64 << 10 // bytes of a token endpoint's reply
	maxBearer     = 16 << 10 // bytes of the token in it
	// defaultLife is assumed of a token that says nothing about its expiry: short,
	// so that a wrong guess costs little.
	defaultLife = time.Minute
	// maxLife is how long we believe in a token at most: expires_in may be 1e12.
	maxLife = 24 * time.Hour
	// minLife keeps a token endpoint whose tokens are born old from being asked
	// for every call.
	minLife = time.Second
)

var (
	errNoReply   = errors.New("the token endpoint's reply is not the JSON of RFC 6749")
	errNoBearer  = errors.New("the token endpoint's reply holds no usable bearer token")
	errStillborn = errors.New("the token endpoint gave a token that has expired")
)

// parseTokenReply reads a successful reply of a token endpoint (RFC 6749 section
// 5.1) with a token of the type want. Life is how long the token is good for from now on:
// the shorter of expires_in and, for a JWT, what is left until exp; where neither says
// anything, a minute. Now is the issuer's time, by which exp was set.
func parseTokenReply(body []byte, now time.Time, want string) (token Secret, life time.Duration, err error) {
	o, err := parseObject(body)
	if err != nil {
		return Secret{}, 0, errNoReply
	}
	text, err := o.text("access_token")
	if err != nil || !isBearer(text) || len(text) > maxBearer {
		return Secret{}, 0, errNoBearer
	}
	// REQUIRED by the RFC, forgotten by some; but a MAC or DPoP token is no bearer, and
	// one that is not bound to our key is no DPoP token (RFC 9449 section 5).
	kind, err := o.text("token_type")
	if err != nil || !strings.EqualFold(kind, want) && (kind != "" || want != "Bearer") {
		return Secret{}, 0, errNoBearer
	}
	// RFC 8693 section 2.2.1: what was exchanged may have become something else.
	if issued, err := o.text("issued_token_type"); err != nil || issued != "" && issued != typeAccessToken && issued != typeJWT {
		return Secret{}, 0, errNoBearer
	}
	life = maxLife
	stated, haveStated := o.expiresIn()
	if haveStated {
		life = min(life, stated)
	}
	exp, haveExp := expiryOfJWT(text)
	if haveExp {
		life = min(life, exp.Sub(now))
	}
	if !haveStated && !haveExp {
		life = defaultLife
	}
	if life < minLife {
		return Secret{}, 0, errStillborn
	}
	return NewSecret(text), life, nil
}

// expiresIn is the member of that name, which some send as a string. Zero, negative
// and unreadable values say nothing: the token was made just now.
func (o object) expiresIn() (time.Duration, bool) {
	raw := string(o["expires_in"])
	if s, err := o.text("expires_in"); err == nil && s != "" {
		raw = s
	}
	seconds, err := strconv.ParseFloat(raw, 64)
	if err != nil || !(seconds > 0) {
		return 0, false
	}
	if seconds > maxLife.Seconds() {
		return maxLife, true
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// expiryOfJWT reads the exp of token, if it is a JWT that has one. The signature is
// not checked: the token is for somebody else, we only want to know when to renew it.
func expiryOfJWT(token string) (time.Time, bool) {
	var c claims
	_, _, err := jwt.NewParser().ParseUnverified(token, &c)
	// Unverifiable: an algorithm that is unknown here, found out after the claims.
	if err != nil && !errors.Is(err, jwt.ErrTokenUnverifiable) || c.expires == nil {
		return time.Time{}, false
	}
	return c.expires.Time, true
}

// isBearer reports whether s can stand in an Authorization header as it is. RFC 6750
// section 2.1 has a narrower alphabet, which some issuers of opaque tokens leave.
func isBearer(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != ""
}

// ErrorCode reads the error member of a refusal (RFC 6749 section 5.2). Anything but
// the codes of that section and of RFC 8707 is dropped: it would be the other side's
// text.
func ErrorCode(body []byte) string {
	var refusal struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &refusal) != nil {
		return ""
	}
	switch refusal.Error {
	case "invalid_request", codeInvalidClient, "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope", "invalid_target":
		return refusal.Error
	}
	return ""
}

const codeInvalidClient = "invalid_client"
