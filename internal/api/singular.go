package api

import "net/http"

// singular are the headers of which a request may have one at most, because we act on
// their one value. Authorization and Idempotency-Key are checked where they are read.
var singular = []string{"Content-Type", "Content-Encoding", "Origin", "Sec-Fetch-Site", "Last-Event-ID", "Mcp-Session-Id", "Mcp-Protocol-Version"}

// onceEach refuses a request with two of them: whoever stands in front of us may have
// judged by the other one (RFC 9110 section 5.3).
func (h *Handler) onceEach(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range singular {
			if len(r.Header.Values(name)) > 1 {
				h.writeProblem(w, r, newProblem("invalid_request", "The header "+name+" is given more than once."))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
