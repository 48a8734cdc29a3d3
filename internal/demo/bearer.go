package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
)

// bearer lets requests through that bring a valid access token with the scope, and
// answers the others as RFC 6750 section 3 says.
type bearer struct {
	verifier *verifier
	scopes   []string // all of them are needed
	log      *slog.Logger
}

// tokenInfoKey carries the verdict from the outer guard to the SDK's.
type tokenInfoKey struct{}

// require guards next. The SDK takes its TokenInfo, to which it binds sessions and
// which it hands to tools, from its own middleware only; that one answers 500 when
// the IAM is away and names no error code, so the verdict is made out here.
func (b bearer) require(next http.Handler) http.Handler {
	inner := sdkauth.RequireBearerToken(func(ctx context.Context, _ string, _ *http.Request) (*sdkauth.TokenInfo, error) {
		info, _ := ctx.Value(tokenInfoKey{}).(*sdkauth.TokenInfo)
		return info, nil
	}, &sdkauth.RequireBearerTokenOptions{ClockSkew: clockSkew})(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, status := bearerToken(r.Header)
		if status != 0 {
			b.challenge(w, r, status, map[int]string{http.StatusBadRequest: "invalid_request"}[status])
			return
		}
		info, err := b.verifier.verify(r.Context(), raw)
		switch {
		case errors.Is(err, errKeysUnavailable) || r.Context().Err() != nil:
			// Not the caller's fault: a 401 would make it throw away a good token.
			w.Header().Set("Retry-After", "1")
			http.Error(w, errKeysUnavailable.Error(), http.StatusServiceUnavailable)
		case err != nil:
			b.log.Info("token refused", "error", err)
			b.challenge(w, r, http.StatusUnauthorized, "invalid_token")
		case !b.hasScope(info):
			b.challenge(w, r, http.StatusForbidden, "insufficient_scope")
		default:
			inner.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tokenInfoKey{}, info)))
		}
	})
}

// bearerToken reads the one Authorization header that there may be. The status is
// 0, 400 for a malformed header, or 401 for none.
func bearerToken(h http.Header) (string, int) {
	values := h.Values("Authorization")
	if len(values) > 1 {
		return "", http.StatusBadRequest
	}
	if len(values) == 0 {
		return "", http.StatusUnauthorized
	}
	fields := strings.Fields(values[0])
	if len(fields) == 0 || !strings.EqualFold(fields[0], "Bearer") {
		return "", http.StatusUnauthorized
	}
	if len(fields) != 2 {
		return "", http.StatusBadRequest
	}
	return fields[1], 0
}

// hasScope reports whether the token has every scope that is needed.
func (b bearer) hasScope(info *sdkauth.TokenInfo) bool {
	for _, s := range b.scopes {
		if !slices.Contains(info.Scopes, s) {
			return false
		}
	}
	return true
}

// challenge says what is missing and where to learn who issues it (RFC 9728 section
// 5.1). A request without credentials gets no error code (RFC 6750 section 3.1).
func (b bearer) challenge(w http.ResponseWriter, r *http.Request, status int, code string) {
	c := fmt.Sprintf(`Bearer realm="demo-mcp", resource_metadata=%q`, origin(r)+resourceMetadataPath)
	if code != "" {
		c += fmt.Sprintf(`, error=%q`, code)
	}
	if len(b.scopes) > 0 {
		c += fmt.Sprintf(`, scope=%q`, strings.Join(b.scopes, " "))
	}
	w.Header().Set("WWW-Authenticate", c)
	http.Error(w, http.StatusText(status), status)
}

// origin is the URL under which the caller reached us. A forged Host misleads
// nobody but its sender.
func origin(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}
