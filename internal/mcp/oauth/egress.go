package oauth

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"answerd/internal/auth/fetch"
	"answerd/internal/tlsconfig"
)

const (
	requestTimeout = 5 * time.Second // for one request, from dialing to the last byte
	maxHeader      = 64 << 10        // bytes of a reply's header
	maxIdleConns   = 4               // per host, in each of the two clients
)

// egress has the two http.Clients for authorization servers. They follow no redirects, because a redirect could carry
// a secret to any host.
//
// An MCP server on the internet chooses which URLs we request: the URL of its metadata, the issuer, and through the
// issuer every endpoint. Without a limit it could make us send requests into the operator's network, for example to a
// cloud's metadata service (server-side request forgery, RFC 9728 section 7.7). So a URL that the server names must
// not lead to an address that is more private than the server's own. Checking the URL is not enough, because its host
// name may resolve to another address when it is dialed.
type egress struct {
	server *url.URL // the MCP server
	// configured is for URLs that the configuration or an issuer in the configuration names, and for the MCP server's
	// origin. It does not restrict addresses, and uses proxies from the environment.
	configured *http.Client
	// discovered is for URLs that the MCP server or an issuer from the MCP server names. It checks the address when it
	// dials, after DNS has resolved the name. It uses no proxy, because the proxy would resolve the name.
	discovered *http.Client
}

// newEgress returns the clients for one MCP server's authorization servers. If certificates is nil, they use the
// system's roots and no client certificate.
func newEgress(server *url.URL, certificates *tlsconfig.Source) *egress {
	mostPrivate := fetch.ClassifyHost(server.Hostname())
	dialer := &net.Dialer{Timeout: requestTimeout}
	dialer.Control = func(_, address string, _ syscall.RawConn) error {
		if fetch.CheckAddress(address, mostPrivate) != nil {
			return errMorePrivate
		}
		return nil
	}
	restricted := newTransport()
	restricted.Proxy = nil
	restricted.DialContext = dialer.DialContext
	configured := newHTTPClient(newTransport(), certificates)
	return &egress{server: server, configured: configured, discovered: newHTTPClient(restricted, certificates)}
}

// newTransport returns a transport with the limits for authorization servers.
func newTransport() *http.Transport {
	t := fetch.NewTransport()
	t.MaxIdleConnsPerHost = maxIdleConns
	t.MaxResponseHeaderBytes = maxHeader
	return t
}

// newHTTPClient returns a client that follows no redirects. certificates may be nil, as for newEgress.
func newHTTPClient(t *http.Transport, certificates *tlsconfig.Source) *http.Client {
	client := &http.Client{Transport: t, Timeout: requestTimeout}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if certificates != nil {
		client.Transport = certificates.Transport(t)
	}
	return client
}

// httpClientFor returns the client for the URL raw. configured says that the configuration names the URL, or the
// authorization server whose metadata has it. For a URL at the MCP server's own origin, configured makes no difference.
func (e *egress) httpClientFor(raw string, configured bool) *http.Client {
	u, err := url.Parse(raw)
	isMCPServer := err == nil && origin(u) == origin(e.server)
	if configured || isMCPServer {
		return e.configured
	}
	return e.discovered
}

// close closes idle connections. Requests in flight must have ended.
func (e *egress) close() {
	e.configured.CloseIdleConnections()
	e.discovered.CloseIdleConnections()
}

// origin returns the origin of u (RFC 6454), with a canonical host.
func origin(u *url.URL) string { return u.Scheme + "://" + canonicalHost(u) }

// canonicalHost returns u's host and port in lower case and without the default port (RFC 3986 sections 6.2.2.1 and
// 6.2.3), so that two spellings of a URL compare as equal.
func canonicalHost(u *url.URL) string {
	host := strings.ToLower(u.Host)
	switch u.Scheme + ":" + u.Port() {
	case "https:443", "http:80", "https:", "http:": // an empty port may have its colon
		return strings.TrimSuffix(host, ":"+u.Port())
	}
	return host
}

// errMorePrivate is returned for an address that a server must not make us connect to.
var errMorePrivate = errors.New("refusing to connect: the authorization server resolves to a more private address than the MCP server")
