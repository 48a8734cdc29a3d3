package token

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"answerd/internal/auth/authtest"
)

// Expires_in 0, missing, negative, 1e12, and what else is sent.
func TestParseReplyUsesTheShorterLifetime(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	jwt := func(lifetime time.Duration) string {
		return authtest.Base64([]byte(`{"alg":"XY9"}`)) + "." + authtest.Base64([]byte(fmt.Sprintf(`{"exp":%d}`, now.Add(lifetime).Unix()))) + ".AA"
	}

	for _, test := range []struct {
		token, expiresIn string
		want             time.Duration
	}{
		{"opaque", `,"expires_in":3600`, time.Hour},
		{"opaque", `,"expires_in":"3600"`, time.Hour},
		{"opaque", `,"expires_in":1.5`, 1500 * time.Millisecond},
		{"opaque", ``, defaultLifetime},
		{"opaque", `,"expires_in":0`, defaultLifetime},
		{"opaque", `,"expires_in":-5`, defaultLifetime},
		{"opaque", `,"expires_in":null`, defaultLifetime},
		{"opaque", `,"expires_in":[1]`, defaultLifetime},
		{"opaque", `,"expires_in":"NaN"`, defaultLifetime},
		{"opaque", `,"expires_in":1e12`, maxLifetime},
		{"opaque", `,"expires_in":1e999`, defaultLifetime},
		{"opaque", `,"expires_in":"Inf"`, maxLifetime},
		{jwt(time.Minute), `,"expires_in":3600`, time.Minute},
		{jwt(time.Hour), `,"expires_in":60`, time.Minute},
		{jwt(time.Hour), ``, time.Hour},
		{jwt(time.Hour), `,"expires_in":0`, time.Hour},
		{jwt(1e6 * time.Hour), ``, maxLifetime},
		{"a.b.c", `,"expires_in":60`, time.Minute},
	} {
		got, err := parseReply([]byte(`{"access_token":"`+test.token+`","token_type":"bEARER"`+test.expiresIn+`}`), now, "Bearer")
		if err != nil || got.Secret.Reveal() != test.token || got.Lifetime != test.want {
			t.Errorf("%.20s%s: %v, %v, want %v", test.token, test.expiresIn, got.Lifetime, err, test.want)
		}
	}

	for _, expired := range []time.Duration{0, -time.Hour} {
		if _, err := parseReply([]byte(`{"access_token":"`+jwt(expired)+`"}`), now, "Bearer"); err != errExpired {
			t.Errorf("exp in %v: %v, want %v", expired, err, errExpired)
		}
	}

	if _, err := parseReply([]byte(`{"access_token":"x","expires_in":0.5}`), now, "Bearer"); err != errExpired {
		t.Errorf("half a second: %v, want %v", err, errExpired)
	}
}

func FuzzTokenReply(f *testing.F) {
	for _, seed := range []string{
		`{"access_token":"x","token_type":"Bearer","expires_in":3600}`,
		`{"access_token":"eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjE3MDAwMDAwMDB9.AA","expires_in":"1e12"}`,
		`{"access_token":"eyJhbGciOiJub25lIn0.eyJleHAiOjFlMzAwfQ.","expires_in":-1}`,
		`{"access_token":"x","access_token":"y"}`, `{"access_token":"a b"}`, `{"error":"invalid_client"}`, `<html>`, `null`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = ErrorCode(body)
		got, err := parseReply(body, time.Unix(1_700_000_000, 0), "Bearer")
		tok, lifetime := got.Secret, got.Lifetime
		if err != nil {
			if !tok.IsZero() {
				t.Errorf("a token with the error %v, want none", err)
			}
			return
		}
		if lifetime < minLifetime || lifetime > maxLifetime || tok.IsZero() || strings.ContainsAny(tok.Reveal(), " \r\n\x00") {
			t.Errorf("token of %d bytes for %v, want printable text for %v to %v", len(tok.Reveal()), lifetime, minLifetime, maxLifetime)
		}
	})
}
