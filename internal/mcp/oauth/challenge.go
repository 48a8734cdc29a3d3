package oauth

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
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
	earlier  []string // scopes of earlier challenges, which other calls may need (saveStepUp)
	code     string   // error, such as insufficient_scope; "": not stated
}

// parseChallenge combines the challenges of the schemes Bearer and DPoP in h, the header of a refusal. Of each
// parameter, it takes the first value that is not empty, or for scope the first with a valid scope. It ignores header
// lines that are too long.
func parseChallenge(h http.Header) challenge {
	var combined challenge
	for _, line := range h.Values("WWW-Authenticate") {
		if len(line) > maxChallenge {
			continue
		}
		parseParameters(line, func(scheme, name, value string) {
			isKnown := scheme == "bearer" || scheme == "dpop"
			switch {
			case isKnown && name == "resource_metadata":
				combined.metadata = cmp.Or(combined.metadata, strings.TrimSpace(value))
			case isKnown && name == "error":
				combined.code = cmp.Or(combined.code, strings.TrimSpace(value))
			case isKnown && name == "scope" && combined.scopes == nil:
				combined.scopes = validScopes(strings.Fields(value))
			}
		})
	}
	return combined
}

// parseParameters calls f with each parameter of the challenges in line, a WWW-Authenticate header (RFC 9110 sections
// 11.2 and 11.6.1), and with the scheme of its challenge. scheme and name are in lower case. A value without quotes may
// have more characters than the RFC allows, such as those of a URL.
//
// oauthex.ParseWWWAuthenticate is not used. It refuses a whole line because of an empty string, a space before an equals
// sign or a value in base64, and loses what follows an empty list element or a backslash at the end of a string.
func parseParameters(line string, f func(scheme, name, value string)) {
	const space = " \t"
	scheme := ""
	for rest := strings.Trim(line, space+","); rest != ""; rest = strings.TrimLeft(rest, space+",") {
		name, after := cutBefore(rest, space+",=")
		after = strings.TrimLeft(after, space)
		value, isParameter := strings.CutPrefix(after, "=")
		value = strings.TrimLeft(value, space)
		switch {
		case !isParameter:
			scheme, rest = strings.ToLower(name), after // or a value in base64, after which another scheme must follow
			continue
		case strings.HasPrefix(value, `"`):
			value, rest = cutQuotedString(value)
		default:
			value, rest = cutBefore(value, space+",")
		}
		f(scheme, strings.ToLower(name), value)
	}
}

// cutBefore splits s before the first of the characters in chars. Without any of them, before is s.
func cutBefore(s, chars string) (before, after string) {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

// cutQuotedString returns the content of the quoted string with which s begins (RFC 9110 section 5.6.4), and what
// follows it. A string without an end ends with s.
func cutQuotedString(s string) (content, rest string) {
	var out strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return out.String(), s[i+1:]
		case s[i] == '\\' && i+1 < len(s):
			i++
		}
		out.WriteByte(s[i])
	}
	return out.String(), ""
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
