// Package tlsconfig gives outgoing connections root certificates and a client certificate from
// files, and a listener its certificate. The files are replaced while the process runs.
//
//	source, err := tlsconfig.Load(tlsconfig.Files{CAFile: "ca.pem", CertFile: "client.pem", KeyFile: "client.key"})
//	if err != nil {
//		return err // a *FileError: which file, and why
//	}
//	transport := source.Transport(http.DefaultTransport.(*http.Transport).Clone())
//	defer transport.CloseIdleConnections()
//	…
//	err = source.Reload() // after an error the certificates in use stay
//
// The package does not watch files: the caller knows when they change. After Reload, a Transport
// opens new connections with the new certificates and gives the older ones to no further request.
// A connection that is in use, such as a WebSocket, keeps the certificates that it was opened with.
// Everything may be used concurrently; nothing blocks except for reading the files.
package tlsconfig

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// maxFile bounds a file, in bytes. The roots of a whole system have some 300 KiB.
const maxFile = 4 << 20

// Files names PEM files. The zero value means the system's roots and no client certificate.
type Files struct {
	CAFile   string // root certificates, in place of the system's
	CertFile string // the client certificate, or that of a listener, with its intermediate certificates
	KeyFile  string // its private key, not encrypted
}

// Field is a field of Files.
type Field string

// The fields of Files.
const (
	CAFile   Field = "ca"
	CertFile Field = "cert"
	KeyFile  Field = "key"
)

// Paths returns the paths that are set.
func (f Files) Paths() []string {
	var out []string
	for _, path := range []string{f.CAFile, f.CertFile, f.KeyFile} {
		if path != "" {
			out = append(out, path)
		}
	}
	return out
}

// Check returns a *FileError if only one of the certificate and its key is set.
func (f Files) Check() error {
	switch {
	case f.CertFile != "" && f.KeyFile == "":
		return &FileError{Field: KeyFile, Err: errors.New("must be set, since the client certificate is")}
	case f.KeyFile != "" && f.CertFile == "":
		return &FileError{Field: CertFile, Err: errors.New("must be set, since the key of a client certificate is")}
	}
	return nil
}

// FileError says which file cannot be used, and why. Its text has the path and nothing of the file.
type FileError struct {
	Field Field
	Path  string // "" if it is not set
	Err   error
}

func (e *FileError) Error() string {
	if e.Path == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s: %v", e.Path, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// contents is what the files held at one time. It does not change.
type contents struct {
	read   [3][]byte // of CAFile, CertFile and KeyFile
	roots  *x509.CertPool
	client *tls.Certificate // nil without one
}

// Source has the certificates of Files.
type Source struct {
	files   Files
	current atomic.Pointer[contents]
}

// Load reads the files. Errors are *FileError. A certificate that has expired is accepted, since
// only the other side decides about it; Expiry tells.
func Load(files Files) (*Source, error) {
	s := &Source{files: files}
	if err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload reads the files again. If they have not changed, connections are kept. After an error,
// which is a *FileError, the certificates in use stay.
func (s *Source) Reload() error {
	next, err := s.files.read()
	if err != nil {
		return err
	}
	if old := s.current.Load(); old != nil && sameFiles(old.read, next.read) {
		return nil
	}
	s.current.Store(next)
	return nil
}

func sameFiles(a, b [3][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// Files returns the paths that the certificates come from.
func (s *Source) Files() Files { return s.files }

// ServerConfig returns the TLS settings of a listener whose certificate is that of CertFile. New
// connections get the newest one, open connections keep theirs. Roots are not used, and clients
// need no certificate.
func (s *Source) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := s.current.Load().client; c != nil {
				return c, nil
			}
			return nil, errors.New("there is no certificate")
		},
	}
}

// Expiry returns when the certificate of CertFile expires; the zero time without one.
func (s *Source) Expiry() time.Time {
	if c := s.current.Load().client; c != nil {
		return c.Leaf.NotAfter
	}
	return time.Time{}
}

// read reads and checks the files.
func (f Files) read() (*contents, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	c := &contents{}
	for i, file := range []struct {
		field Field
		path  string
	}{{CAFile, f.CAFile}, {CertFile, f.CertFile}, {KeyFile, f.KeyFile}} {
		if file.path == "" {
			continue
		}
		data, err := readFile(file.path)
		if err != nil {
			return nil, &FileError{file.field, file.path, err}
		}
		c.read[i] = data
	}
	if f.CAFile != "" {
		c.roots = x509.NewCertPool()
		if !c.roots.AppendCertsFromPEM(c.read[0]) {
			return nil, &FileError{CAFile, f.CAFile, errors.New("has no certificate in PEM")}
		}
	}
	if f.CertFile != "" {
		pair, err := tls.X509KeyPair(c.read[1], c.read[2])
		if err != nil {
			return nil, f.pairError(err, c.read[1])
		}
		c.client = &pair
	}
	return c, nil
}

// readFile returns the content of a file. The error does not repeat the path.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err == nil {
		defer file.Close()
		var data []byte
		if data, err = io.ReadAll(io.LimitReader(file, maxFile+1)); len(data) > maxFile {
			err = fmt.Errorf("is larger than %d bytes", maxFile)
		}
		if err == nil {
			return data, nil
		}
	}
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	return nil, fmt.Errorf("cannot be read: %w", err)
}

// pairError says whether the certificate or its key is what is wrong.
func (f Files) pairError(err error, cert []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(cert) {
		return &FileError{CertFile, f.CertFile, errors.New("has no certificate in PEM")}
	}
	return &FileError{KeyFile, f.KeyFile, fmt.Errorf("is not the key of %s: %w", f.CertFile, err)}
}

// config returns the TLS settings for connections with these certificates.
func (c *contents) config(seen func(tls.ConnectionState) error) *tls.Config {
	out := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots, VerifyConnection: seen}
	if c.client != nil {
		// Unlike Certificates, this sends the certificate to servers whose list of authorities lacks
		// its issuer: their refusal says more than one of a missing certificate.
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.client, nil }
	}
	return out
}

// Transport sends requests over connections with the newest certificates of a Source.
type Transport struct {
	source   *Source
	template *http.Transport // never sends
	peer     atomic.Int64    // when the certificate of the server expires: Unix time in s; 0: not known

	current atomic.Pointer[generation]
	mu      sync.Mutex // held while current is replaced
}

// generation is a transport whose connections have one state of the files.
type generation struct {
	*http.Transport
	of *contents
}

// Transport returns a round tripper that sends requests as t would, with the certificates of s. It
// replaces the TLS settings of t, which must not be used any more.
func (s *Source) Transport(t *http.Transport) *Transport { return &Transport{source: s, template: t} }

// Client returns an HTTP client for an identity provider or another single host, with connections of
// its own.
func (s *Source) Client() *http.Client {
	own := http.DefaultTransport.(*http.Transport).Clone() // proxies from the environment
	own.MaxIdleConnsPerHost = 8
	return &http.Client{Transport: s.Transport(own)}
}

// Source returns where the certificates come from.
func (t *Transport) Source() *Source { return t.source }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.newest().RoundTrip(r)
}

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() {
	if g := t.current.Load(); g != nil {
		g.CloseIdleConnections()
	}
}

// PeerExpiry returns when the certificate expires that the server showed in the newest connection;
// the zero time if there was none over TLS.
func (t *Transport) PeerExpiry() time.Time {
	if at := t.peer.Load(); at != 0 {
		return time.Unix(at, 0)
	}
	return time.Time{}
}

// newest returns the transport for the certificates that the source has now.
func (t *Transport) newest() *generation {
	now := t.source.current.Load()
	if g := t.current.Load(); g != nil && g.of == now {
		return g
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now = t.source.current.Load()
	old := t.current.Load()
	if old != nil && old.of == now {
		return old // another request was first
	}
	next := &generation{t.template.Clone(), now}
	next.TLSClientConfig = now.config(t.notePeer)
	t.current.Store(next)
	if old != nil {
		// It also closes connections that become idle later, since no request asks old any more.
		old.CloseIdleConnections()
	}
	return next
}

// notePeer notes when the server's certificate expires. It refuses nothing.
func (t *Transport) notePeer(c tls.ConnectionState) error {
	if len(c.PeerCertificates) > 0 {
		t.peer.Store(c.PeerCertificates[0].NotAfter.Unix())
	}
	return nil
}
