package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// RFC 6750 section 2.1: one header, one token, and nowhere else.
func TestFromRequestReadsExactlyOneHeader(t *testing.T) {
	for _, test := range []struct {
		name    string
		headers []string
		want    string
		err     error
	}{
		{"none", nil, "", ErrNoToken},
		{"good", []string{"Bearer abc.d-e_f~+/=="}, "abc.d-e_f~+/==", nil},
		{"lower case", []string{"bearer abc"}, "abc", nil},
		{"more spaces", []string{"Bearer   abc"}, "abc", nil},
		{"empty header", []string{""}, "", ErrNoToken},
		{"scheme alone", []string{"Bearer"}, "", ErrNoToken},
		{"empty token", []string{"Bearer "}, "", ErrNoToken},
		{"basic", []string{"Basic dTpw"}, "", ErrNoToken},
		{"two headers", []string{"Bearer abc", "Bearer abc"}, "", ErrMalformed},
		{"two kinds", []string{"Basic dTpw", "Bearer abc"}, "", ErrMalformed},
		{"empty and good", []string{"", "Bearer abc"}, "", ErrMalformed},
		{"two tokens", []string{"Bearer a b"}, "", ErrMalformed},
		{"a list", []string{"Bearer a,Bearer b"}, "", ErrMalformed},
		{"control character", []string{"Bearer a\x01b"}, "", ErrMalformed},
		{"tab", []string{"Bearer\tabc"}, "", ErrMalformed},
		{"not ASCII", []string{"Bearer é"}, "", ErrMalformed},
		{"only padding", []string{"Bearer =="}, "", ErrMalformed},
		{"padding inside", []string{"Bearer a=b"}, "", ErrMalformed},
		{"too long", []string{"Bearer " + strings.Repeat("a", maxTokenBytes+1)}, "", ErrMalformed},
		{"just not too long", []string{"Bearer " + strings.Repeat("a", maxTokenBytes)}, strings.Repeat("a", maxTokenBytes), nil},
		{"no scheme", []string{" abc"}, "", ErrMalformed},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://answerd/answer?access_token=abc", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.AddCookie(&http.Cookie{Name: "access_token", Value: "abc"})
		r.Header["Authorization"] = test.headers
		if got, err := FromRequest(r); got != test.want || err != test.err {
			t.Errorf("%s: got %.20q, %v, want %v, %v", test.name, got, err, test.want, test.err)
		}
	}
}

// RFC 6750 section 3.
func TestChallengeAnswersEveryError(t *testing.T) {
	for _, test := range []struct {
		err    error
		status int
		header string
	}{
		{ErrNoToken, 401, anonymous},
		{fmt.Errorf("x: %w", ErrInvalidToken), 401, invalidToken},
		{invalidTokenReason(errNoKey), 401, invalidToken},
		{ErrMalformed, 400, badRequest},
		{&ScopeError{Required: "ask"}, 403, scopeMissing},
		{fmt.Errorf("x: %w", &ScopeError{Required: "ask"}), 403, scopeMissing},
		{fmt.Errorf("%w: %w", ErrKeysUnavailable, context.Canceled), 503, ""},
		{errors.New("a bug"), 500, ""},
		{nil, 500, ""},
	} {
		if status, header := Challenge(test.err, metadataURL); status != test.status || header != test.header {
			t.Errorf("%v: got %d %s, want %v, %v", test.err, status, header, test.status, test.header)
		}
	}
}
