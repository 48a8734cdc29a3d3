package oauth

import (
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

const (
	maxChallenge = 8 << 10 // bytes of one WWW-Authenticate header; a longer one is ignored
	maxScopes    = 64      // of a challenge, or of metadata; the others are left out
	maxScope     = 256     // bytes of one; a longer one is left out
)

// challenge has what a server says in WWW-Authenticate with a refusal (RFC 6750 section 3,
// RFC 9728 section 5.1, RFC 9449 section 7.1).
type challenge struct {
	metadata string // the URL of the server's metadata; "": its well-known URL
	scopes   []string
	code     string // such as insufficient_scope
}

// parseChallenge reads the challenges of the schemes Bearer and DPoP. It ignores malformed
// ones.
func parseChallenge(h http.Header) challenge {
	var out challenge
	for _, line := range h.Values("WWW-Authenticate") {
		if len(line) > maxChallenge {
			continue
		}
		all, err := oauthex.ParseWWWAuthenticate([]string{fillEmptyStrings(line)})
		if err != nil {
			continue
		}
		for _, c := range all {
			if c.Scheme != "bearer" && c.Scheme != "dpop" {
				continue
			}
			if out.metadata == "" {
				out.metadata = strings.TrimSpace(c.Params["resource_metadata"])
			}
			if out.scopes == nil {
				out.scopes = validScopes(strings.Fields(c.Params["scope"]))
			}
			if out.code == "" {
				out.code = strings.TrimSpace(c.Params["error"])
			}
		}
	}
	return out
}

// fillEmptyStrings returns a header line with a space in each empty quoted string. RFC 9110 section 5.6.4
// allows them, as in realm="", and oauthex refuses the whole line because of one.
func fillEmptyStrings(line string) string {
	var out strings.Builder
	quoted := false
	for i := 0; i < len(line); i++ {
		out.WriteByte(line[i])
		switch {
		case line[i] == '\\' && quoted && i+1 < len(line):
			i++
			out.WriteByte(line[i])
		case line[i] == '"':
			quoted = !quoted
			if quoted && strings.HasPrefix(line[i+1:], `"`) {
				out.WriteByte(' ')
			}
		}
	}
	return out.String()
}

// validScopes returns the valid ones of scopes (RFC 6749 section 3.3), each once.
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

// mergeScopes returns the scopes of a, then those of b that are not in a.
func mergeScopes(a, b []string) []string { return validScopes(slices.Concat(a, b)) }

// isSubset reports whether all of a are in b.
func isSubset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}
