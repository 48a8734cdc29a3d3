package tlsconfig_test

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"answerd/internal/tlsconfig"
	"answerd/internal/tlsconfig/tlstest"
)

// showSerial answers with the serial number of the client's certificate.
var showSerial = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].SerialNumber.String())
})

func newSource(t *testing.T, files tlsconfig.Files) *tlsconfig.Source {
	t.Helper()
	s, err := tlsconfig.Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newTransport(t *testing.T, s *tlsconfig.Source) *tlsconfig.Transport {
	t.Helper()
	out := s.Transport(http.DefaultTransport.(*http.Transport).Clone())
	t.Cleanup(out.CloseIdleConnections)
	return out
}

func getBody(t *testing.T, rt http.RoundTripper, url string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rt.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestTransportShowsTheNewestClientCertificate(t *testing.T) {
	ca, dir := tlstest.NewCA(t), t.TempDir()
	server := ca.StartServer(t, showSerial)
	source := newSource(t, ca.WriteClient(t, dir, time.Now().Add(time.Hour)))
	rt := newTransport(t, source)
	first, err := getBody(t, rt, server.URL)
	if err != nil {
		t.Fatal(err)
	}

	ca.WriteClient(t, dir, time.Now().Add(time.Hour))
	if again, err := getBody(t, rt, server.URL); err != nil || again != first {
		t.Errorf("before Reload: got certificate %s, %v, want %s", again, err, first)
	}
	if err := source.Reload(); err != nil {
		t.Fatal(err)
	}
	if second, err := getBody(t, rt, server.URL); err != nil || second == first {
		t.Errorf("after Reload: got certificate %s, %v, want a newer one", second, err)
	}
}

// An idle connection was opened with the roots of its time. It is not used when they have changed.
func TestTransportForgetsConnectionsThatItsRootsDoNotAllow(t *testing.T) {
	ca, other, dir := tlstest.NewCA(t), tlstest.NewCA(t), t.TempDir()
	server := ca.StartServer(t, showSerial)
	files := ca.WriteClient(t, dir, time.Now().Add(time.Hour))
	source := newSource(t, files)
	rt := newTransport(t, source)
	if _, err := getBody(t, rt, server.URL); err != nil {
		t.Fatal(err)
	}
	tlstest.ReplaceFile(t, files.CAFile, other.PEM)
	if err := source.Reload(); err != nil {
		t.Fatal(err)
	}
	_, err := getBody(t, rt, server.URL)
	if _, refused := errors.AsType[*tls.CertificateVerificationError](err); !refused {
		t.Errorf("got %v, want a *tls.CertificateVerificationError", err)
	}
}

// A request that is in flight during Reload ends as usual, and its connection is not used again.
func TestTransportKeepsRequestsInFlightDuringReload(t *testing.T) {
	ca, dir := tlstest.NewCA(t), t.TempDir()
	entered, leave := make(chan struct{}), make(chan struct{})
	server := ca.StartServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(entered)
			<-leave
		}
		showSerial(w, r)
	}))

	source := newSource(t, ca.WriteClient(t, dir, time.Now().Add(time.Hour)))
	rt := newTransport(t, source)
	slow := make(chan string)
	go func() {
		defer close(slow)
		body, err := getBody(t, rt, server.URL+"/slow")
		if err != nil {
			t.Error(err)
		}
		slow <- body
	}()

	<-entered
	ca.WriteClient(t, dir, time.Now().Add(time.Hour))
	if err := source.Reload(); err != nil {
		t.Fatal(err)
	}
	second, err := getBody(t, rt, server.URL)
	if err != nil {
		t.Fatal(err)
	}
	close(leave)
	first := <-slow
	third, err := getBody(t, rt, server.URL)
	if err != nil || first == second || third != second {
		t.Errorf("got certificates %s (in flight), %s, %s, %v; want the last two to be the newer one", first, second, third, err)
	}
}

func TestTransportWithoutFilesUsesTheRootsOfTheSystem(t *testing.T) {
	server := httptest.NewTLSServer(showSerial)
	defer server.Close()
	_, err := getBody(t, newTransport(t, newSource(t, tlsconfig.Files{})), server.URL)
	if _, refused := errors.AsType[*tls.CertificateVerificationError](err); !refused {
		t.Errorf("got %v, want a *tls.CertificateVerificationError", err)
	}
}

func TestTransportRefusesOldVersionsOfTLS(t *testing.T) {
	ca := tlstest.NewCA(t)
	cert, key := ca.Issue(t, time.Now().Add(time.Hour))
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(showSerial)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	rt := newTransport(t, newSource(t, ca.WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))))
	if _, err := getBody(t, rt, server.URL); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("got %v, want an error about the protocol version", err)
	}
}

func TestExpiryIsThatOfTheClientAndOfTheServer(t *testing.T) {
	ca := tlstest.NewCA(t)
	clientEnd, serverEnd := time.Now().Add(5*time.Hour).Truncate(time.Second), time.Now().Add(7*time.Hour).Truncate(time.Second)
	cert, key := ca.Issue(t, serverEnd)
	server := ca.StartServerWith(t, showSerial, cert, key)
	source := newSource(t, ca.WriteClient(t, t.TempDir(), clientEnd))
	rt := newTransport(t, source)
	if got := rt.PeerExpiry(); !got.IsZero() {
		t.Errorf("before a request: got %s, want the zero time", got)
	}
	if _, err := getBody(t, rt, server.URL); err != nil {
		t.Fatal(err)
	}
	if got := source.Expiry(); !got.Equal(clientEnd) {
		t.Errorf("client: got %s, want %s", got, clientEnd)
	}
	if got := rt.PeerExpiry(); !got.Equal(serverEnd) {
		t.Errorf("server: got %s, want %s", got, serverEnd)
	}
	if got := newSource(t, tlsconfig.Files{}).Expiry(); !got.IsZero() {
		t.Errorf("without files: got %s, want the zero time", got)
	}
}

func TestLoadNamesTheFileThatCannotBeUsed(t *testing.T) {
	ca, dir := tlstest.NewCA(t), t.TempDir()
	good := ca.WriteClient(t, dir, time.Now().Add(time.Hour))
	bad := filepath.Join(dir, "bad.pem")
	if err := os.WriteFile(bad, []byte("SECRET"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, otherKey := ca.Issue(t, time.Now().Add(time.Hour))
	other := filepath.Join(dir, "other.key")
	tlstest.ReplaceFile(t, other, otherKey)
	large := filepath.Join(dir, "large.pem")
	tlstest.ReplaceFile(t, large, make([]byte, 5<<20))

	// What openssl writes with a passphrase: PKCS #8, and the older form.
	encrypted, encryptedToo := filepath.Join(dir, "encrypted.key"), filepath.Join(dir, "older.key")
	tlstest.ReplaceFile(t, encrypted, pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("SECRET")}))
	tlstest.ReplaceFile(t, encryptedToo, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"}, Bytes: []byte("SECRET")}))

	missing := filepath.Join(dir, "missing.pem")
	for name, c := range map[string]struct {
		files tlsconfig.Files
		field tlsconfig.Field
		want  string
	}{
		"no CA file":      {tlsconfig.Files{CAFile: missing}, tlsconfig.CAFile, missing + ": cannot be read: no such file or directory"},
		"no certificates": {tlsconfig.Files{CAFile: bad}, tlsconfig.CAFile, bad + ": has no certificate in PEM"},
		"large CA file":   {tlsconfig.Files{CAFile: large}, tlsconfig.CAFile, large + ": cannot be read: is larger than 4194304 bytes"},
		"no key":          {tlsconfig.Files{CertFile: good.CertFile}, tlsconfig.KeyFile, "must be set, since the client certificate is"},
		"no certificate":  {tlsconfig.Files{KeyFile: good.KeyFile}, tlsconfig.CertFile, "must be set, since the key of a client certificate is"},
		"bad certificate": {tlsconfig.Files{CertFile: bad, KeyFile: good.KeyFile}, tlsconfig.CertFile, bad + ": has no certificate in PEM"},
		"another's key":   {tlsconfig.Files{CertFile: good.CertFile, KeyFile: other}, tlsconfig.KeyFile, other + ": is not the key of " + good.CertFile},
		"a bad key":       {tlsconfig.Files{CertFile: good.CertFile, KeyFile: bad}, tlsconfig.KeyFile, bad + ": is not the key of " + good.CertFile},
		"encrypted":       {tlsconfig.Files{CertFile: good.CertFile, KeyFile: encrypted}, tlsconfig.KeyFile, encrypted + ": is encrypted; openssl pkey writes it without a passphrase"},
		"older form":      {tlsconfig.Files{CertFile: good.CertFile, KeyFile: encryptedToo}, tlsconfig.KeyFile, encryptedToo + ": is encrypted; openssl pkey writes it without a passphrase"},
	} {
		_, err := tlsconfig.Load(c.files)
		e, ok := errors.AsType[*tlsconfig.FileError](err)
		if !ok || e.Field != c.field || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: got %v, want %s: %s", name, err, c.field, c.want)
		}
	}
}

func TestReloadKeepsTheCertificatesAfterAnError(t *testing.T) {
	ca, dir := tlstest.NewCA(t), t.TempDir()
	server := ca.StartServer(t, showSerial)
	files := ca.WriteClient(t, dir, time.Now().Add(time.Hour))
	source := newSource(t, files)
	rt := newTransport(t, source)
	first, err := getBody(t, rt, server.URL)
	if err != nil {
		t.Fatal(err)
	}
	tlstest.ReplaceFile(t, files.KeyFile, []byte("half"))
	if err := source.Reload(); err == nil {
		t.Error("Reload of a broken key: got no error, want one")
	}
	rt.CloseIdleConnections()
	if again, err := getBody(t, rt, server.URL); err != nil || again != first {
		t.Errorf("got certificate %s, %v, want %s", again, err, first)
	}
}
