package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
	"answerd/internal/tlsconfig/tlstest"
)

// newTLSClient returns a client that trusts ca, speaks HTTP/2 or not, and opens a connection for each
// request. serial returns the number of the last certificate that it was shown.
func newTLSClient(t *testing.T, ca *tlstest.CA, http2 bool) (client *http.Client, serial func() string) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	last := ""
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{
		Protocols: protocols, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, VerifyConnection: func(s tls.ConnectionState) error {
			last = s.PeerCertificates[0].SerialNumber.String()
			return nil
		}},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, func() string { return last }
}

// With a certificate answerd serves https at ADDR, streams included, over HTTP/1.1 and HTTP/2. A new
// certificate is used for the next connection, and a broken file changes nothing.
func TestServeOverTLS(t *testing.T) {
	t.Parallel()
	ca, dir := tlstest.NewCA(t), t.TempDir()
	cert, key := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	issue := func() {
		c, k := ca.Issue(t, time.Now().Add(10*24*time.Hour))
		tlstest.ReplaceFile(t, cert, c)
		tlstest.ReplaceFile(t, key, k)
	}
	issue()

	w := newTestWorld(t, newTwoCallScript())
	env := append(w.environ(), "TLS_CERT_FILE="+cert, "TLS_KEY_FILE="+key)
	p := spawnAnswerd(t, env)
	line := p.waitForLine(t, `"listening"`)
	addr := regexp.MustCompile(`"addr":"([^"]+)"`).FindStringSubmatch(line)[1]
	if !strings.Contains(line, `"scheme":"https"`) {
		t.Errorf("got %s, want the scheme https", line)
	}

	// Requests are answered over HTTP/1.1 and HTTP/2, but not without TLS.
	before := ""
	for _, http2 := range []bool{false, true} {
		c, serial := newTLSClient(t, ca, http2)
		resp := post(t, c, "https://"+addr+"/answer/stream", e2eQuestion)
		frames := readStream(t, resp)
		if last := frames[len(frames)-1]; last.Event != "final_answer" || (resp.ProtoMajor == 2) != http2 {
			t.Errorf("got %s %s over %s, want final_answer, over HTTP/2: %t", last.Event, last.Data, resp.Proto, http2)
		}
		before = serial()
	}
	plain, err := http.Get("http://" + addr + "/healthz")
	if err != nil || plain.StatusCode != http.StatusBadRequest {
		t.Errorf("http: got %v, %v, want 400", plain, err)
	} else {
		plain.Body.Close()
	}

	if err := checkHealth(t.Context(), newTestEnvironment("ADDR", addr, "TLS_CERT_FILE", cert)); err != nil {
		t.Errorf("got %v of the health check, want none", err)
	}
	// ask does not start another service because it cannot verify this one's certificate.
	err = run(t.Context(), []string{"ask", e2eQuestion}, w.environment("ADDR", addr, "TLS_CERT_FILE", cert, "TLS_KEY_FILE", key), io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "https://"+addr) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v of ask, want an error about the certificate of https://%s", err, addr)
	}

	issue()
	p.waitForLine(t, "TLS certificates read again")
	c, serial := newTLSClient(t, ca, true)
	if _, page := getBody(t, c, "https://"+addr+"/metrics"); !regexp.MustCompile(`answerd_tls_certificate_expiry_seconds\{connection="listener",name="",[^}]*role="server"\} 86\d`).MatchString(page) {
		t.Errorf("got metrics without the listener's certificate, want its expiry: %s", page)
	}
	now := serial()
	if now == before {
		t.Errorf("got certificate %s after the rotation, want another one than before", now)
	}

	// A key that cannot be used is refused, and the one in use stays.
	tlstest.ReplaceFile(t, key, []byte("SECRET"))
	if line := p.waitForLine(t, "TLS certificates refused"); !strings.Contains(line, "TLS_KEY_FILE: "+key) || strings.Contains(line, "SECRET") {
		t.Errorf("got %s, want the setting and its file", line)
	}
	if status, _ := getBody(t, c, "https://"+addr+"/healthz"); status != http.StatusOK || serial() != now {
		t.Errorf("got %d with certificate %s, want 200 with %s", status, serial(), now)
	}
	p.signal(t, syscall.SIGTERM)
	if err := p.wait(); err != nil {
		t.Errorf("got %v\n%s, want no error", err, p.log)
	}
}

func TestTLSFilesOfTheListenerAreChecked(t *testing.T) {
	files := tlstest.NewCA(t).WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
	for want, settings := range map[string][]string{
		"TLS_KEY_FILE: must be set when TLS_CERT_FILE is":                                   {"TLS_CERT_FILE", files.CertFile},
		"TLS_CERT_FILE: must be set when TLS_KEY_FILE is":                                   {"TLS_KEY_FILE", files.KeyFile},
		"TLS_CERT_FILE: " + files.KeyFile + ": has no certificate in PEM":                   {"TLS_CERT_FILE", files.KeyFile, "TLS_KEY_FILE", files.KeyFile},
		"TLS_KEY_FILE: " + files.KeyFile + ".no: cannot be read: no such file or directory": {"TLS_CERT_FILE", files.CertFile, "TLS_KEY_FILE", files.KeyFile + ".no"},
		// TLS does not stand in for authentication.
		"ADDR: is not loopback and no inbound authentication is set: set AUTH_ISSUER, or AUTH_INSECURE_ALLOW_ANONYMOUS=true to serve everybody": {
			"ADDR", ":0", "TLS_CERT_FILE", files.CertFile, "TLS_KEY_FILE", files.KeyFile},
	} {
		err := run(t.Context(), nil, newTestEnvironment(append([]string{"ADDR", "127.0.0.1:0", "LLM_BASE_URL", "http://127.0.0.1:9/v1"}, settings...)...), io.Discard, io.Discard)
		if err == nil || err.Error() != want || reportError(err, io.Discard) != 2 {
			t.Errorf("got %v, want exit code 2 and %s", err, want)
		}
	}
}

// Without a service at ADDR, ask and eval answer in their own process, which needs no certificate.
func TestAskInThisProcessIgnoresTheCertificate(t *testing.T) {
	t.Parallel()
	files := tlstest.NewCA(t).WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
	w := newTestWorld(t, newTwoCallScript())
	cmd := newAskCommand(t.Context(), append(w.environ(), "ADDR=127.0.0.1:1", "TLS_CERT_FILE="+files.CertFile, "TLS_KEY_FILE="+files.KeyFile), "ask", "What is it?")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if out, err := cmd.Output(); err != nil || len(out) == 0 {
		t.Errorf("got %v, %q, %s, want an answer", err, out, &stderr)
	}
}

// Connections over the limit are refused over TLS as they are without.
func TestConnectionsOverTLSAreBounded(t *testing.T) {
	t.Parallel()
	ca, dir := tlstest.NewCA(t), t.TempDir()
	files := ca.WriteClient(t, dir, time.Now().Add(time.Hour))
	w := newTestWorld(t, newTwoCallScript())
	p := spawnAnswerd(t, append(w.environ(), "TLS_CERT_FILE="+files.CertFile, "TLS_KEY_FILE="+files.KeyFile, "MAX_CONNECTIONS=1"))
	addr := strings.TrimPrefix(p.url(t), "http://")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	first, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()

	c, _ := newTLSClient(t, ca, false)
	for path, want := range map[string]int{"/tools": http.StatusServiceUnavailable, "/healthz": http.StatusOK} {
		if status, body := getBody(t, c, "https://"+addr+path); status != want {
			t.Errorf("%s: got %d %s, want %d", path, status, body, want)
		}
	}
}

// stoppableConn is a client's connection that reads nothing once it is stopped.
type stoppableConn struct {
	net.Conn
	stopped, closed context.Context
	close           context.CancelFunc
}

func (c *stoppableConn) Read(b []byte) (int, error) {
	if c.stopped.Err() != nil {
		<-c.closed.Done()
		return 0, net.ErrClosed
	}
	return c.Conn.Read(b)
}

func (c *stoppableConn) Close() error {
	c.close()
	return c.Conn.Close()
}

// A client that reads nothing for WRITE_TIMEOUT is disconnected over HTTP/2 too. There are two such clients: one that
// gives the stream no more flow-control window, and one that gives it but reads nothing from its connection.
func TestStalledReaderOverHTTP2IsDisconnected(t *testing.T) {
	t.Parallel()
	ca, dir := tlstest.NewCA(t), t.TempDir()
	files := ca.WriteClient(t, dir, time.Now().Add(time.Hour))

	text := make([]string, 256)
	for i := range text {
		b := make([]byte, 16<<10)
		_, _ = rand.Read(b) // never fails
		text[i] = hex.EncodeToString(b)
	}

	w := newTestWorld(t, llmtest.Turns(llmtest.Says(text...), llmtest.Says(text...)))
	s := startAnswerd(t, w.environment("TLS_CERT_FILE", files.CertFile, "TLS_KEY_FILE", files.KeyFile, "WRITE_TIMEOUT", "200ms"))
	url := strings.Replace(s.url, "http://", "https://", 1)
	for window, stops := range map[int]bool{64 << 10: false, 64 << 20: true} {
		stopped, stop := context.WithCancel(t.Context())
		defer stop()
		c, _ := newTLSClient(t, ca, true)
		transport := c.Transport.(*http.Transport)
		transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: window, MaxReceiveBufferPerConnection: window}
		var conn *stoppableConn
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			tcp, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			closed, close := context.WithCancel(context.Background())
			conn = &stoppableConn{tcp, stopped, closed, close}
			return conn, tcp.(*net.TCPConn).SetReadBuffer(16 << 10)
		}
		resp := post(t, c, url+"/answer/stream", `{"question":"?"}`)
		if resp.ProtoMajor != 2 {
			t.Fatalf("got %s, want HTTP/2", resp.Proto)
		}
		if stops {
			stop()
		}

		// Nothing is read until the server has given up.
		other, _ := newTLSClient(t, ca, false)
		for ctx := t.Context(); ; {
			if _, page := getBody(t, other, url+"/metrics"); regexp.MustCompile(`answerd_streams_active(\{[^}]*\})? 0`).MatchString(page) {
				break
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				t.Fatal("the server still writes to a reader that takes nothing, want it to give up")
			}
		}
		if stops {
			conn.Close()
		}
		if n, err := io.Copy(io.Discard, resp.Body); err == nil || n >= 8<<20 {
			t.Errorf("got %d bytes, %v, want some and an error", n, err)
		}
	}
}
