package mcp

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"answerd/internal/mcp/config"
)

// BenchmarkLargeCall is a call with a large result, from the reply's bytes to the text for
// the model, without a network.
func BenchmarkLargeCall(b *testing.B) {
	const line = "A line of a report that goes on for long.\n"
	for _, size := range []int{100_000, 1_000_000} {
		result := textResult(strings.Repeat(line, size/len(line)))
		newTransport := func(http.RoundTripper) http.RoundTripper {
			return fakeServer(func(*http.Request, message) (string, error) { return result, nil })
		}
		c := newClient(b, Options{Transport: newTransport}, config.Server{Name: "a", URL: "http://localhost"})
		c.Tools(b.Context())
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(result)))
			for b.Loop() {
				res, err := c.Call(b.Context(), Call{Tool: "t", Args: json.RawMessage(`{}`)})
				if err != nil || len(res.Text()) < size/2 {
					b.Fatalf("error %v, want len(text) at least %d, no error", err, size/2)
				}
			}
		})
	}
}
