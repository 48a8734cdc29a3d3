package oauth

import (
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

const (
	maxChallenge = 8 << 10 // bytes of one WWW-Authenticate header; a longer one says nothing
	maxScopes    = 64      // of a challenge, or of metadata; the others are left out
	maxScope     = 256     // bytes of one; a longer one is left out
)

// challenge is what a server says with a refusal (RFC 6750 section 3, RFC 9728 section
// 5.1, RFC 9449 section 7.1).
type challenge struct {
	metadata string // where the server's metadata is; "": at its well-known place
	scopes   []string
	code     string // such as insufficient_scope
}

// readChallenge reads the challenges of schemes that we can answer. What is broken says
// nothing.
func readChallenge(h http.Header) challenge {
	var out challenge
	for _, line := range h.Values("WWW-Authenticate") {
		if len(line) > maxChallenge {
			continue
		}
		all, err := oauthex.ParseWWWAuthenticate([]string{line})
		if err != nil {
			continue
		}
		for _, c := range all {
			if c.Scheme != "bearer" && c.Scheme != "dpop" {
				continue
			}
			if out.metadata == "" {
				out.metadata = c.Params["resource_metadata"]
			}
			if out.scopes == nil {
				out.scopes = cleanScopes(strings.Fields(c.Params["scope"]))
			}
			if out.code == "" {
				out.code = c.Params["error"]
			}
		}
	}
	return out
}

// cleanScopes are those of scopes that are scopes (RFC 6749 section 3.3), each once.
func cleanScopes(scopes []string) []string {
	var out []string
	for _, s := range scopes {
		bad := strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
		if s == "" || bad || len(s) > maxScope || slices.Contains(out, s) || len(out) == maxScopes {
			continue
		}
		out = append(out, s)
	}
	return out
}

// union is a, and what of b is not in it.
func union(a, b []string) []string { return cleanScopes(slices.Concat(a, b)) }

// within reports whether all of a are in b.
func within(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}
