package fetch

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/transport/transporttest"
)

// A request over an HTTP/2 connection that is dead fails long before its time limit, and the next one gets a new
// connection.
func TestTransportClosesDeadHTTP2Connections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var http2 http.Protocols
		http2.SetUnencryptedHTTP2(true)
		network := transporttest.NewNetwork()
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
		server := &http.Server{Handler: handler, Protocols: &http2}
		go func() { _ = server.Serve(network) }()
		transport := NewTransport()
		transport.DialContext, transport.Protocols = network.Dial, &http2
		client := &http.Client{Transport: transport, Timeout: time.Hour}
		request := func() (string, error) {
			resp, err := client.Get("http://localhost/")
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			return string(body), err
		}

		if got, err := request(); got != "HTTP/2.0" || err != nil {
			t.Errorf("got %q and the error %v, want HTTP/2.0", got, err)
		}
		network.Dead.Store(true)
		started := time.Now()
		if _, err := request(); err == nil || time.Since(started) > time.Minute {
			t.Errorf("got the error %v after %s, want one within a minute", err, time.Since(started))
		}
		network.Dead.Store(false)
		if got, err := request(); got != "HTTP/2.0" || err != nil {
			t.Errorf("got %q and the error %v, want HTTP/2.0 over a new connection", got, err)
		}
		transport.CloseIdleConnections()
		_ = server.Close()
	})
}
