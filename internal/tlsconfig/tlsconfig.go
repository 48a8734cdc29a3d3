// Package tlsconfig configures outgoing connections with root certificates and a client certificate
// from files, and a listener with its certificate. The files may be replaced while the process runs.
//
//	source, err := tlsconfig.Load(tlsconfig.Files{CAFile: "ca.pem", CertFile: "client.pem", KeyFile: "client.key"})
//	if err != nil {
//		return err // a *FileError: which file, and why
//	}
//	transport := source.Transport(http.DefaultTransport.(*http.Transport).Clone())
//	defer transport.CloseIdleConnections()
//	…
//	err = source.Reload() // after an error, the current certificates stay in use
//
// The package does not watch the files; its caller does. After Reload, a Transport opens new
// connections with the new certificates, and uses the older connections for no further request. A
// connection that is in use, such as a WebSocket, keeps the certificates with which it was opened.
// Everything may be used concurrently. Only Load and Reload block, to read the files.
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

// maxFile bounds a file, in bytes. The roots of a whole system take about 300 KiB.
const maxFile = 4 << 20

// Files names PEM files. The zero value stands for the system's roots and no client certificate.
type Files struct {
	CAFile   string // root certificates, instead of the system's
	CertFile string // the client certificate, or that of a listener, with its intermediate certificates
	KeyFile  string // its private key, not encrypted
}

// Field identifies a field of Files in errors.
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

// FileError is the error for a file that cannot be used. Its text has the path and no content of
// the file.
type FileError struct {
	Field Field
	Path  string // "" if it is not set
	Err   error
}

// Error returns the path, if it is set, and the reason.
func (e *FileError) Error() string {
	if e.Path == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s: %v", e.Path, e.Err)
}

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Err }

// contents has what the files contained at one time. It does not change, so that connections can
// refer to it without a lock.
type contents struct {
	read   [3][]byte // of CAFile, CertFile and KeyFile
	roots  *x509.CertPool
	client *tls.Certificate // nil without one
}

// Source holds the certificates of Files. Reload replaces them.
type Source struct {
	files   Files
	current atomic.Pointer[contents]
}

// Load reads the files. The error is a *FileError. It accepts an expired certificate, because the
// other side decides whether to accept that; Expiry returns the time.
func Load(files Files) (*Source, error) {
	s := &Source{files: files}
	if err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload reads the files again. If they have not changed, connections are kept. After an error,
// which is a *FileError, the current certificates stay in use.
func (s *Source) Reload() error {
	next, err := s.files.readContents()
	if err != nil {
		return err
	}
	if old := s.current.Load(); old != nil && sameFiles(old.read, next.read) {
		return nil
	}
	s.current.Store(next)
	return nil
}

// sameFiles reports whether all files have the same content.
func sameFiles(a, b [3][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// Files returns the paths of the certificates.
func (s *Source) Files() Files { return s.files }

// ServerConfig returns the TLS configuration of a listener with the certificate of CertFile. New
// connections get the newest certificate, and open connections keep theirs. It does not use the roots,
// and does not ask clients for a certificate.
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

// Expiry returns the time when the certificate of CertFile expires, or the zero time if there is none.
func (s *Source) Expiry() time.Time {
	if c := s.current.Load().client; c != nil {
		return c.Leaf.NotAfter
	}
	return time.Time{}
}

// readContents reads and checks the files.
func (f Files) readContents() (*contents, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	loaded := &contents{}
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
		loaded.read[i] = data
	}
	if f.CAFile != "" {
		loaded.roots = x509.NewCertPool()
		if !loaded.roots.AppendCertsFromPEM(loaded.read[0]) {
			return nil, &FileError{CAFile, f.CAFile, errors.New("has no certificate in PEM")}
		}
	}
	if f.CertFile != "" {
		pair, err := tls.X509KeyPair(loaded.read[1], loaded.read[2])
		if err != nil {
			return nil, f.pairError(err, loaded.read[1], loaded.read[2])
		}
		loaded.client = &pair
	}
	return loaded, nil
}

// readFile returns the content of a file. The error does not repeat the path, which FileError has.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err == nil {
		defer file.Close()
		var data []byte
		data, err = io.ReadAll(io.LimitReader(file, maxFile+1))
		if len(data) > maxFile {
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

// pairError converts an error about a certificate and its key to one that names the file at fault.
func (f Files) pairError(err error, cert, key []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(cert) {
		return &FileError{CertFile, f.CertFile, errors.New("has no certificate in PEM")}
	}
	// The type of the block in PKCS #8, and its header Proc-Type in the older form.
	if bytes.Contains(key, []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----")) || bytes.Contains(key, []byte("Proc-Type: 4,ENCRYPTED")) {
		return &FileError{KeyFile, f.KeyFile, errors.New("is encrypted; openssl pkey writes it without a passphrase")}
	}
	return &FileError{KeyFile, f.KeyFile, fmt.Errorf("is not the key of %s: %w", f.CertFile, err)}
}

// newConfig returns a TLS configuration with these certificates. verify is called with each new
// connection after its certificates were verified.
func (c *contents) newConfig(verify func(tls.ConnectionState) error) *tls.Config {
	out := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots, VerifyConnection: verify}
	if c.client != nil {
		// Unlike Certificates, this also sends the certificate to a server whose list of authorities
		// lacks its issuer. The server's error is then about that, and not about a missing certificate.
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.client, nil }
	}
	return out
}

// Transport sends requests over connections that use the newest certificates of a Source. It has
// one http.Transport for each state of the files, because the TLS settings of an http.Transport
// must not change.
type Transport struct {
	source   *Source
	template *http.Transport // is cloned and sends nothing
	peer     atomic.Int64    // expiry of the server's certificate in Unix seconds; 0 if unknown

	current atomic.Pointer[generation]
	mu      sync.Mutex // held while current is replaced
}

// generation is a transport whose connections use one state of the files.
type generation struct {
	*http.Transport
	of *contents
}

// Transport returns a round tripper that sends requests like t, with the certificates of s instead
// of t's TLS settings. The caller must not use t any more.
func (s *Source) Transport(t *http.Transport) *Transport { return &Transport{source: s, template: t} }

// Client returns an HTTP client with its own connections, for an identity provider or another
// single host.
func (s *Source) Client() *http.Client {
	own := http.DefaultTransport.(*http.Transport).Clone() // uses proxies of the environment
	own.MaxIdleConnsPerHost = 8
	return &http.Client{Transport: s.Transport(own)}
}

// Source returns the source of the certificates.
func (t *Transport) Source() *Source { return t.source }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.newestGeneration().RoundTrip(r)
}

// CloseIdleConnections closes the connections that are not in use.
func (t *Transport) CloseIdleConnections() {
	if g := t.current.Load(); g != nil {
		g.CloseIdleConnections()
	}
}

// PeerExpiry returns the time when the server's certificate in the newest connection expires, or
// the zero time if there was no TLS connection.
func (t *Transport) PeerExpiry() time.Time {
	if at := t.peer.Load(); at != 0 {
		return time.Unix(at, 0)
	}
	return time.Time{}
}

// newestGeneration returns the transport for the source's current certificates. It creates it if
// the files have changed since the last request; requests in flight finish on the old one.
func (t *Transport) newestGeneration() *generation {
	now := t.source.current.Load()
	if g := t.current.Load(); g != nil && g.of == now {
		return g
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now = t.source.current.Load()
	old := t.current.Load()
	if old != nil && old.of == now {
		return old // another request has created it
	}
	next := &generation{t.template.Clone(), now}
	next.TLSClientConfig = now.newConfig(t.recordPeer)
	t.current.Store(next)
	if old != nil {
		// An http.Transport without requests also closes connections that become idle later.
		old.CloseIdleConnections()
	}
	return next
}

// recordPeer records when the server's certificate expires. It accepts every connection.
func (t *Transport) recordPeer(c tls.ConnectionState) error {
	if len(c.PeerCertificates) > 0 {
		t.peer.Store(c.PeerCertificates[0].NotAfter.Unix())
	}
	return nil
}
