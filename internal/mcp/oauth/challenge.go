package oauth

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

const (
	maxChallenge = 8 << 10 // bytes of one WWW-Authenticate header; a longer one is ignored
	maxScopes    = 64      // scopes in a challenge or in metadata; further scopes are left out
	maxScope     = 256     // bytes of one scope; a longer one is left out
)

// challenge is what a server requires of a token, from the WWW-Authenticate header of a refusal (RFC 6750 section 3,
// RFC 9728 section 5.1, RFC 9449 section 7.1).
type challenge struct {
	metadata string   // resource_metadata, the URL of the server's metadata; "" means the well-known URL
	scopes   []string // scopes that a token needs; nil: not stated
	code     string   // error, such as insufficient_scope; "": not stated
}

// parseChallenge combines the challenges of the schemes Bearer and DPoP in h, the header of a refusal. Of each
// parameter, it takes the first value that is not empty, or for scope the first with a valid scope. It ignores header
// lines that are malformed or too long.
func parseChallenge(h http.Header) challenge {
	var combined challenge
	for _, line := range h.Values("WWW-Authenticate") {
		if len(line) > maxChallenge {
			continue
		}
		challenges, err := oauthex.ParseWWWAuthenticate([]string{padEmptyStrings(line)})
		if err != nil {
			continue
		}
		for _, c := range challenges {
			if c.Scheme != "bearer" && c.Scheme != "dpop" {
				continue
			}
			combined.metadata = cmp.Or(combined.metadata, strings.TrimSpace(c.Params["resource_metadata"]))
			combined.code = cmp.Or(combined.code, strings.TrimSpace(c.Params["error"]))
			if combined.scopes == nil {
				combined.scopes = validScopes(strings.Fields(c.Params["scope"]))
			}
		}
	}
	return combined
}

// padEmptyStrings returns line with a space in each empty quoted string: realm="" becomes realm=" ". RFC 9110 section
// 5.6.4 allows empty strings, but oauthex refuses a whole line that has one.
func padEmptyStrings(line string) string {
	var out strings.Builder
	isInString, isEscaped := false, false
	for i, c := range []byte(line) {
		out.WriteByte(c)
		switch {
		case isEscaped:
			isEscaped = false // c may be a quote, which does not end the string
		case c == '\\':
			isEscaped = isInString
		case c == '"':
			isInString = !isInString
			if isInString && strings.HasPrefix(line[i+1:], `"`) {
				out.WriteByte(' ')
			}
		}
	}
	return out.String()
}

// validScopes returns the first maxScopes valid scopes (RFC 6749 section 3.3) without duplicates; nil if none is valid.
func validScopes(scopes []string) []string {
	var out []string
	for _, s := range scopes {
		hasBadRune := strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
		isValid := s != "" && len(s) <= maxScope && !hasBadRune
		if isValid && len(out) < maxScopes && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// mergeScopes returns the scopes of a, then those of b that are not in a. It leaves out what validScopes leaves out.
func mergeScopes(a, b []string) []string { return validScopes(slices.Concat(a, b)) }

// isSubset reports whether all of a are in b.
func isSubset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}
