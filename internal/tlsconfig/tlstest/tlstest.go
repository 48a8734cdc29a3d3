// Package tlstest creates certificates and servers for tests of TLS connections.
//
//	ca := tlstest.NewCA(t)
//	server := ca.StartServer(t, handler) // on 127.0.0.1; it requires a client certificate of ca
//	files := ca.WriteClient(t, t.TempDir(), time.Now().Add(time.Hour))
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/tlsconfig"
)

// serial is the serial number of the newest certificate.
var serial atomic.Int64

// CA is a certificate authority.
type CA struct {
	PEM  []byte // the authority's certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA returns a new authority, whose certificate is valid for an hour.
func NewCA(t testing.TB) *CA {
	t.Helper()
	ca := &CA{cert: &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	der, key := ca.sign(t, ca.cert, time.Now().Add(time.Hour))
	ca.key = key
	var err error
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return ca
}

// sign completes template and returns a certificate in DER with a new key, valid until notAfter. The certificate is
// signed by ca or, while ca has no key yet, by its own key.
func (ca *CA) sign(t testing.TB, template *x509.Certificate, notAfter time.Time) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(serial.Add(1))
	template.Subject = pkix.Name{CommonName: template.SerialNumber.String()}
	template.NotBefore, template.NotAfter = time.Now().Add(-48*time.Hour), notAfter
	parent, signer := ca.cert, ca.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// Issue returns a certificate for 127.0.0.1 and its key, both in PEM. The certificate is valid until notAfter, for
// servers and clients.
func (ca *CA) Issue(t testing.TB, notAfter time.Time) (cert, key []byte) {
	t.Helper()
	der, private := ca.sign(t, &x509.Certificate{
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, notAfter)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// WriteClient writes three files to dir: the authority's certificate to ca.pem, and a new client certificate with its
// key to client.pem and client.key. The certificate is valid until notAfter. Existing files are replaced.
func (ca *CA) WriteClient(t testing.TB, dir string, notAfter time.Time) tlsconfig.Files {
	t.Helper()
	files := tlsconfig.Files{
		CAFile:   filepath.Join(dir, "ca.pem"),
		CertFile: filepath.Join(dir, "client.pem"),
		KeyFile:  filepath.Join(dir, "client.key"),
	}
	cert, key := ca.Issue(t, notAfter)
	for path, data := range map[string][]byte{files.CAFile: ca.PEM, files.CertFile: cert, files.KeyFile: key} {
		ReplaceFile(t, path, data)
	}
	return files
}

// ReplaceFile writes data to a new file and renames that to path, as tools that rotate certificates do.
func ReplaceFile(t testing.TB, path string, data []byte) {
	t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// StartServer starts a server on 127.0.0.1 with a certificate issued by ca. The server is closed when the test ends. It
// requires a client certificate issued by one of the authorities in clients, or by ca if clients is empty.
func (ca *CA) StartServer(t testing.TB, h http.Handler, clients ...*CA) *httptest.Server {
	t.Helper()
	cert, key := ca.Issue(t, time.Now().Add(time.Hour))
	return ca.StartServerWith(t, h, cert, key, clients...)
}

// StartServerWith is like StartServer, but the server uses the certificate cert with its key, both in PEM.
func (ca *CA) StartServerWith(t testing.TB, h http.Handler, cert, key []byte, clients ...*CA) *httptest.Server {
	t.Helper()
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if len(clients) == 0 {
		clients = []*CA{ca}
	}
	pool := x509.NewCertPool()
	for _, c := range clients {
		pool.AppendCertsFromPEM(c.PEM)
	}
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // tests refuse handshakes on purpose
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}
