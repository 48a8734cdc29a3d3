package auth

import (
	"net/http"
	"strings"
	"testing"
)

// A key set comes from the network. Bytes that are not a key set give no keys.
func FuzzKeySet(f *testing.F) {
	for _, s := range []string{
		`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`,
		`{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM","kid":"b","alg":"ES256"}]}`,
		`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`, `{"keys":[]}`, `{"keys":[null]}`, `{"keys":{}}`, `{"keys":[{"kty":"oct","k":"AAAA"}]}`, `{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]}`, `{"keys":[],"keys":[]}`, `[`, "\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		keys, err := parseKeySet(body)
		if (err == nil) != (len(keys) > 0) || len(keys) > maxKeys {
			t.Errorf("parseKeySet(%q) = %d keys, %v, want keys or an error, at most %d", body, len(keys), err, maxKeys)
		}
		for _, k := range keys {
			if k.allowsAlgorithm("none") || k.allowsAlgorithm("HS256") {
				t.Errorf("key of %q allows none or HS256, want neither", body)
			}
		}
	})
}

// The token that is read from an Authorization header is one token of visible ASCII.
func FuzzAuthorization(f *testing.F) {
	for _, s := range []string{"Bearer a.b.c", "bearer a", "Bearer  a", "Bearer a b", "Basic YTpi", "Bearer", "Bearer ", "Bearer a,b", "Bearer \xff", "Bearer a\x00", " Bearer a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		token, err := FromRequest(&http.Request{Header: http.Header{"Authorization": {value}}})
		if err == nil && (token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })) {
			t.Errorf("%q gives %q, want printable characters without spaces", value, token)
		}
	})
}
