package api_test

import (
	"bufio"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/event/memory"
)

// net/http reads the rest of a short body before it sends a short response. A caller with a slow
// connection must get the response, although that takes longer than a reader may take for one write.
func TestRefusedCallersWithASlowBodyGetTheResponse(t *testing.T) {
	for _, path := range []string{"/runs/run_x/cancel", "/answer?a=%ff"} {
		synctest.Test(t, func(t *testing.T) {
			c := serveOverPipes(t, newHandlerOver(t, memory.New(memory.Options{})))()
			defer c.Close()

			go func() {
				_, _ = io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{")
				<-time.After(12 * time.Second)
				_, _ = io.WriteString(c, "}")
			}()

			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatalf("%s: got no response, %v, want a problem", path, err)
			}
			resp.Body.Close()
			if resp.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s: got %s %v, want a problem", path, resp.Status, resp.Header)
			}
		})
	}
}
