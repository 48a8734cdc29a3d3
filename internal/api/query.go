package api

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// readableQuery refuses a query that cannot be read whole: net/url leaves such parts out,
// as if nobody had asked for them.
func (h *Handler) readableQuery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			h.writeProblem(w, r, newProblem("invalid_request", "The query is not well formed."))
			return
		}
		for name, values := range query {
			if text := name + strings.Join(values, ""); !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				h.writeProblem(w, r, newProblem("invalid_request", "The query is not UTF-8 without NUL."))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
