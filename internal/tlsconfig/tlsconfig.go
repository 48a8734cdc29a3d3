// Package tlsconfig loads certificates from files: root certificates and a client certificate for outgoing connections,
// or a listener's certificate. The files may be replaced while the process runs.
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
// The package does not watch the files. Callers must call Reload when they change. After that, a Transport opens new
// connections with the new certificates, and uses no older connection for another request. A connection that is in use,
// such as a WebSocket, keeps its certificates. Everything may be used concurrently. Only Load and Reload read files.
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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/auth/fetch"
)

// maxFile is the maximum size of a file in bytes. The roots of a whole system take about 300 KiB.
const maxFile = 4 << 20

// Files names PEM files. The zero value means the system's roots and no client certificate.
type Files struct {
	CAFile   string // root certificates, instead of the system's
	CertFile string // the client's or listener's certificate, followed by its intermediate certificates
	KeyFile  string // the private key for CertFile, not encrypted
}

// Field identifies a field of Files in errors.
type Field string

// The fields of Files.
const (
	CAFile   Field = "ca"
	CertFile Field = "cert"
	KeyFile  Field = "key"
)

// Paths returns those of the paths that are set.
func (f Files) Paths() []string {
	isUnset := func(path string) bool { return path == "" }
	return slices.DeleteFunc([]string{f.CAFile, f.CertFile, f.KeyFile}, isUnset)
}

// Check returns a *FileError if only one of CertFile and KeyFile is set. It does not read the files.
func (f Files) Check() error {
	switch {
	case f.CertFile != "" && f.KeyFile == "":
		return &FileError{Field: KeyFile, Err: errors.New("must be set, since the client certificate is")}
	case f.KeyFile != "" && f.CertFile == "":
		return &FileError{Field: CertFile, Err: errors.New("must be set, since the key of a client certificate is")}
	}
	return nil
}

// FileError is the error for a file that cannot be used. Its text has the path, but nothing from the file.
type FileError struct {
	Field Field
	Path  string // "" if the problem is that the field is not set
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

// contents has what the files contained when they were read. It never changes, so connections can refer to it without a
// lock.
type contents struct {
	ca, cert, key []byte           // the bytes of CAFile, CertFile and KeyFile; nil if the field is not set
	roots         *x509.CertPool   // nil for the system's roots
	certificate   *tls.Certificate // from CertFile and KeyFile; nil if these are not set
}

// Source holds the certificates that were read from Files. Reload replaces them.
type Source struct {
	files   Files
	current atomic.Pointer[contents] // never nil after Load
}

// Load reads the files. The error is a *FileError. Load accepts an expired certificate, because whether to accept it is
// the peer's decision. See Source.Expiry.
func Load(files Files) (*Source, error) {
	s := &Source{files: files}
	if err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload reads the files again. If they have not changed, connections are kept. If it returns an error, which is a
// *FileError, the current certificates stay in use.
func (s *Source) Reload() error {
	next, err := s.files.readContents()
	if err != nil {
		return err
	}
	if old := s.current.Load(); old != nil && old.equal(next) {
		return nil
	}
	s.current.Store(next)
	return nil
}

// equal reports whether c and d have the same bytes of all files.
func (c *contents) equal(d *contents) bool {
	return bytes.Equal(c.ca, d.ca) && bytes.Equal(c.cert, d.cert) && bytes.Equal(c.key, d.key)
}

// Files returns the paths of the files.
func (s *Source) Files() Files { return s.files }

// ServerConfig returns the TLS configuration for a listener that uses the certificate in CertFile. New connections get
// the newest certificate, and open connections keep theirs. Without CertFile, every handshake fails. The listener
// ignores CAFile and requests no certificates from clients.
func (s *Source) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := s.current.Load().certificate; c != nil {
				return c, nil
			}
			return nil, errors.New("there is no certificate")
		},
	}
}

// Expiry returns when the certificate in CertFile expires, or the zero time if there is none.
func (s *Source) Expiry() time.Time {
	if c := s.current.Load().certificate; c != nil {
		return c.Leaf.NotAfter
	}
	return time.Time{}
}

// readContents reads the files and decodes the certificates. Its error is a *FileError.
func (f Files) readContents() (*contents, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	loaded := &contents{}
	var err error
	if loaded.ca, err = readFile(CAFile, f.CAFile); err != nil {
		return nil, err
	}
	if loaded.cert, err = readFile(CertFile, f.CertFile); err != nil {
		return nil, err
	}
	if loaded.key, err = readFile(KeyFile, f.KeyFile); err != nil {
		return nil, err
	}
	if f.CAFile != "" {
		loaded.roots = x509.NewCertPool()
		if !loaded.roots.AppendCertsFromPEM(loaded.ca) {
			return nil, &FileError{CAFile, f.CAFile, errors.New("has no certificate in PEM")}
		}
	}
	if f.CertFile != "" {
		pair, err := tls.X509KeyPair(loaded.cert, loaded.key)
		if err != nil {
			return nil, f.pairError(err, loaded.cert, loaded.key)
		}
		loaded.certificate = &pair
	}
	return loaded, nil
}

// readFile returns the content of the file at path, or nil if path is "". It returns a *FileError for the given field
// if the file cannot be read or is larger than maxFile.
func readFile(field Field, path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, readError(field, path, err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("is larger than %d bytes", maxFile)
	}
	if err != nil {
		return nil, readError(field, path, err)
	}
	return data, nil
}

// readError returns the error for a file that cannot be read. It removes the path from err, because FileError adds the
// path.
func readError(field Field, path string, err error) *FileError {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	return &FileError{Field: field, Path: path, Err: fmt.Errorf("cannot be read: %w", err)}
}

// pairError converts an error of tls.X509KeyPair to a *FileError for the file that causes it. cert and key are the
// bytes of CertFile and KeyFile.
func (f Files) pairError(err error, cert, key []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(cert) {
		return &FileError{CertFile, f.CertFile, errors.New("has no certificate in PEM")}
	}
	isEncryptedPKCS8 := bytes.Contains(key, []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----"))
	isEncryptedOldForm := bytes.Contains(key, []byte("Proc-Type: 4,ENCRYPTED")) // PKCS #1 or SEC 1
	if isEncryptedPKCS8 || isEncryptedOldForm {
		return &FileError{KeyFile, f.KeyFile, errors.New("is encrypted; openssl pkey writes it without a passphrase")}
	}
	return &FileError{KeyFile, f.KeyFile, fmt.Errorf("is not the key of %s: %w", f.CertFile, err)}
}

// newConfig returns the TLS configuration for a client that uses these certificates. verify is called for each new
// connection, after the server's certificates have been verified.
func (c *contents) newConfig(verify func(tls.ConnectionState) error) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.roots, VerifyConnection: verify}
	if c.certificate != nil {
		// With tls.Config.Certificates, the client would not send the certificate if the server's list of authorities
		// lacks its issuer. The server would then report that the certificate is missing, not that it is not accepted.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return c.certificate, nil
		}
	}
	return config
}

// Transport sends requests over connections that use the newest certificates of a Source. When the files have changed,
// it switches to a new http.Transport, because an http.Transport's TLS settings must not change.
type Transport struct {
	source     *Source
	template   *http.Transport // cloned for each generation; sends no requests itself
	peerExpiry atomic.Int64    // when the server's certificate expires, as Unix seconds; 0 if unknown

	current atomic.Pointer[generation] // nil before the first request
	mu      sync.Mutex                 // held while current is replaced
}

// generation is an http.Transport whose connections all use the same contents.
type generation struct {
	*http.Transport
	contents *contents
}

// Transport returns a round tripper with the settings of t, except that it uses the certificates of s instead of t's
// TLS settings. Callers must not use t afterwards.
func (s *Source) Transport(t *http.Transport) *Transport { return &Transport{source: s, template: t} }

// Client returns an HTTP client with its own connections, which uses the proxies of the environment. It keeps up to 8
// idle connections per host, because it is meant for a single host, such as an identity provider.
func (s *Source) Client() *http.Client {
	transport := fetch.NewTransport()
	transport.MaxIdleConnsPerHost = 8
	return &http.Client{Transport: s.Transport(transport)}
}

// Source returns the source of the certificates.
func (t *Transport) Source() *Source { return t.source }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.newestGeneration().RoundTrip(r)
}

// CloseIdleConnections closes the idle connections. http.Client.CloseIdleConnections calls it.
func (t *Transport) CloseIdleConnections() {
	if g := t.current.Load(); g != nil {
		g.CloseIdleConnections()
	}
}

// PeerExpiry returns when the server's certificate expires, as seen on the newest connection. It returns the zero time
// if there was no TLS connection.
func (t *Transport) PeerExpiry() time.Time {
	if seconds := t.peerExpiry.Load(); seconds != 0 {
		return time.Unix(seconds, 0)
	}
	return time.Time{}
}

// newestGeneration returns the transport for the source's current certificates. If the files have changed since the
// last request, it creates a new transport and closes the previous one's idle connections. Requests in flight continue
// on the previous transport.
func (t *Transport) newestGeneration() *generation {
	if g := t.current.Load(); g != nil && g.contents == t.source.current.Load() {
		return g
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	newest := t.source.current.Load()
	old := t.current.Load()
	if old != nil && old.contents == newest {
		return old // a concurrent request has created it
	}
	next := &generation{Transport: t.template.Clone(), contents: newest}
	next.TLSClientConfig = newest.newConfig(t.recordPeerExpiry)
	t.current.Store(next)
	if old != nil {
		// After this call, old also closes connections when they become idle, until it gets another request.
		old.CloseIdleConnections()
	}
	return next
}

// recordPeerExpiry records when the server's certificate expires. It accepts every connection.
func (t *Transport) recordPeerExpiry(c tls.ConnectionState) error {
	if len(c.PeerCertificates) > 0 {
		t.peerExpiry.Store(c.PeerCertificates[0].NotAfter.Unix())
	}
	return nil
}
