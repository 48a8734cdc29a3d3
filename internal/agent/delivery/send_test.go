package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"answerd/internal/auth/authtest"
	"answerd/internal/event"
)

// Receivers that do not play along get the attempt and nothing else: a redirect is not followed, an
// answer is not read to its end, and a receiver that hangs is left.
func TestHostileReceivers(t *testing.T) {
	var elsewhere int
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	over := make(chan struct{})
	defer close(over)

	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string // of the error; "" is a delivery
	}{
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, "HTTP 307"},
		"huge body": {func(w http.ResponseWriter, _ *http.Request) {
			for chunk := bytes.Repeat([]byte("canary "), 10_000); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, ""},
		"huge header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("canary", 10_000))
		}, "cannot be reached"},
		"hang": {func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-over:
			}
		}, "did not answer within"},
		"body that stops": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusAccepted)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-over:
			}
		}, ""},
		"not HTTP": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, "canary\r\n\r\n")
				conn.Close()
			}
		}, "cannot be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // or net/http would not notice that the sender has left
				c.answer(w, r)
			}))
			defer web.Close()
			defer web.CloseClientConnections()
			p := newProcess(t, Options{URL: web.URL, Log: newLog(), Local: true})
			defer p.stop()
			p.sender.configured.Timeout = 300 * time.Millisecond

			// A delivery takes a bounded time, and its error tells nothing of the receiver's reply.
			begun := time.Now()
			err := p.sender.send(t.Context(), web.URL, record{ID: "dlv_1"}, time.Now())
			isWanted := err == nil
			if c.want != "" {
				isWanted = err != nil && strings.Contains(err.Error(), c.want)
			}
			if !isWanted {
				t.Errorf("send = %v, want %q", err, c.want)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("send took %s, want it within the time of an attempt", took)
			}
			if err != nil && (strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), web.URL)) {
				t.Errorf("send = %v, want no word of the answer and no URL", err)
			}
		})
	}

	if elsewhere != 0 {
		t.Errorf("requests at the target of the redirect = %d, want 0", elsewhere)
	}
}

// A callback at an allowed host name reaches no private address unless the operator allows that; an
// origin that is one itself is allowed.
func TestCallbacksReachNoPrivateAddress(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	for _, c := range []struct {
		target, dialed string
		allow, want    bool
	}{
		{"https://crm.example.com/x", web.Listener.Addr().String(), false, false},
		{"https://crm.example.com/x", web.Listener.Addr().String(), true, false}, // loopback is not private
		{"https://crm.example.com/x", "10.255.255.1:1", false, false},
		{"https://crm.example.com/x", "169.254.169.254:80", true, false},
		{web.URL + "/x", web.Listener.Addr().String(), false, true},
		{"http://localhost:1/x", web.Listener.Addr().String(), false, true},
	} {
		s := newSender(Options{PrivateCallbacks: c.allow})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		conn, err := s.clientFor(c.target, true).Transport.(*http.Transport).DialContext(ctx, "tcp", c.dialed)
		cancel()
		if (err == nil) != c.want {
			t.Errorf("%s at %s, private allowed %t: dial = %v, want it allowed: %t", c.target, c.dialed, c.allow, err, c.want)
		}
		if conn != nil {
			conn.Close()
		}
		if opErr, ok := err.(*net.OpError); err != nil && (!ok || !strings.Contains(opErr.Error(), "more private")) {
			t.Errorf("%s at %s: dial = %v, want it refused because of the address", c.target, c.dialed, err)
		}
		s.close()
	}
}

func TestParseOrigin(t *testing.T) {
	for text, want := range map[string]string{
		"https://CRM.example.com": "https://crm.example.com", "https://crm.example.com:443/": "https://crm.example.com", " http://127.0.0.1:80": "http://127.0.0.1",
		"https://crm.example.com:8443": "https://crm.example.com:8443", "http://crm.example.com": "", "https://crm.example.com/path": "", "https://u:canary@crm.example.com": "",
		"crm.example.com": "", "ftp://crm.example.com": "", "": "", "https://crm.example.com?x=1": "", "*": "",
	} {
		got, err := ParseOrigin(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("ParseOrigin(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
	d := &Deliverer{Options: Options{CallbackOrigins: []string{"https://crm.example.com"}}}
	for url, want := range map[string]bool{
		"https://crm.example.com/a?b=c": true, "https://CRM.example.com:443/": true, "https://crm.example.com.evil.example/": false, "https://crm.example.com:444/": false,
		"http://crm.example.com/": false, "https://x@crm.example.com/": false, "https://crm.example.com/#f": false, "//crm.example.com/": false, "": false,
	} {
		if got := d.AllowsCallback(url); got != want {
			t.Errorf("AllowsCallback(%q) = %t, want %t", url, got, want)
		}
	}
	if none := (*Deliverer)(nil); none.AllowsCallback("https://crm.example.com/") {
		t.Error("AllowsCallback of no Deliverer = true, want false")
	}
}

// The body of a run with a large answer or large results is cut, and says so.
func TestLargeBodiesAreCut(t *testing.T) {
	large := strings.Repeat("é", maxBody)
	for name, end := range map[string]event.Body{
		"answer": event.FinalAnswer{Answer: large, Output: []byte(`"` + large + `"`)},
		"result": event.FinalAnswer{Answer: "Yes.", Metadata: event.Metadata{ToolNames: []string{"a"}, ToolResults: []json.RawMessage{json.RawMessage(`"` + large + `"`)}}},
		"error":  event.RunError{Code: "internal", PartialAnswer: large},
		"cancel": event.Cancelled{Reason: "requested", PartialAnswer: large},
	} {
		b := newBody(event.Run{ID: "run_1"}, "default", end)
		size := len(b.Output) + len(b.Metadata) + len(b.Error)
		if b.Answer != nil {
			size += len(*b.Answer)
		}
		if !b.Truncated || size > maxBody+1024 {
			t.Errorf("%s: truncated %t with %d bytes, want it cut to %d", name, b.Truncated, size, maxBody)
		}
	}
	b := newBody(event.Run{ID: "run_1", Owner: event.Owner{Subject: "ann"}}, "default", answered)
	if b.Truncated || *b.Answer != "Yes." || b.Status != event.StatusCompleted || b.Subject != "ann" || b.Error != nil {
		t.Errorf("body = %+v, want a completed run of ann", b)
	}
}

// A body that fits has all of its parts, however large one of them is.
func TestBodyThatFitsIsComplete(t *testing.T) {
	result := json.RawMessage(`"` + strings.Repeat("x", maxBody/2+1024) + `"`)
	b := newBody(event.Run{ID: "run_1"}, "default", event.FinalAnswer{Answer: "Yes.", Metadata: event.Metadata{ToolResults: []json.RawMessage{result}}})
	if b.Truncated || !strings.Contains(string(b.Metadata), string(result)) {
		t.Errorf("truncated %t with %d bytes of metadata, want the result of %d bytes", b.Truncated, len(b.Metadata), len(result))
	}
}

// The operator's URL may contain a key, so it is in no stored record.
func TestStoredDeliveriesHaveNoSecret(t *testing.T) {
	var log authtest.LogBuffer
	p := newProcess(t, Options{URL: "http://127.0.0.1:9/?key=canary-url", Log: newLog(), Logger: log.Logger()})
	ready := p.prepare(p.startRun(), "", answered)
	if text := string(ready.deliveries[0].job.Request()); strings.Contains(text, "canary") || strings.Contains(text, secret.Reveal()) {
		t.Errorf("record = %s, want no secret", text)
	}
	ready.Release()
	p.stop()
	if strings.Contains(log.String(), "canary") {
		t.Errorf("log = %s, want no secret", log.String())
	}
}
