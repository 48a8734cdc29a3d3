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
	requestTimeout = 5 * time.Second // of one request, from dialing to the last byte
	maxHeader      = 64 << 10        // bytes of a reply's header
)

// egress has the two http.Clients for authorization servers. They follow no redirects, which
// would carry a secret to whatever host a reply names.
//
// An MCP server on the internet chooses which URLs we request: of its metadata, of the issuer, and
// through that of every endpoint. Without a limit it could make us send requests into the operator's
// network, to a cloud's metadata service for example (server-side request forgery, RFC 9728 section
// 7.7). So an address that it names may not be more private than its own. To check the URL would not be
// enough: its host name may resolve to something else when it is dialed.
type egress struct {
	server *url.URL
	// trusted is for URLs of the configuration, the MCP server's own origin included. They
	// may be anywhere, and proxies from the environment are used.
	trusted *http.Client
	// named is for URLs that a server named. The address is checked at dial time, when DNS
	// has resolved it; therefore no proxy is used.
	named *http.Client
}

// newEgress returns the clients for the authorization servers of one MCP server. certificates may be
// nil.
func newEgress(server *url.URL, certificates *tlsconfig.Source) *egress {
	pooled := func() *http.Transport {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost, t.MaxResponseHeaderBytes = 4, maxHeader
		return t
	}
	guarded := pooled()
	guarded.Proxy = nil
	limit := fetch.ClassifyHost(server.Hostname())
	guarded.DialContext = (&net.Dialer{Timeout: requestTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		return checkAddress(address, limit)
	}}).DialContext
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client := func(t *http.Transport) *http.Client {
		c := &http.Client{Transport: t, CheckRedirect: stay, Timeout: requestTimeout}
		if certificates != nil {
			c.Transport = certificates.Transport(t)
		}
		return c
	}
	return &egress{server: server, trusted: client(pooled()), named: client(guarded)}
}

// clientFor returns the client for a URL. trusted means that the configuration names the
// server which the URL comes from.
func (e *egress) clientFor(raw string, trusted bool) *http.Client {
	u, err := url.Parse(raw)
	isOfServer := err == nil && origin(u) == origin(e.server)
	if trusted || isOfServer {
		return e.trusted
	}
	return e.named
}

// close closes the idle connections. Requests in flight must have ended.
func (e *egress) close() {
	e.trusted.CloseIdleConnections()
	e.named.CloseIdleConnections()
}

// origin returns scheme, host and port of u.
func origin(u *url.URL) string { return u.Scheme + "://" + canonicalHost(u) }

// canonicalHost returns host and port of u in lower case and without the default port (RFC 3986 sections
// 6.2.2.1 and 6.2.3), so that two spellings of a URL compare as equal.
func canonicalHost(u *url.URL) string {
	host := strings.ToLower(u.Host)
	switch u.Scheme + ":" + u.Port() {
	case "https:443", "http:80", "https:", "http:":
		return strings.TrimSuffix(host, ":"+u.Port())
	}
	return host
}

// errMorePrivate is returned for an address that a server must not make us connect to.
var errMorePrivate = errors.New("refusing to connect: the authorization server resolves to a more private address than the MCP server")

// checkAddress returns an error if the address that is about to be dialed is more private
// than limit.
func checkAddress(address string, limit fetch.AddressClass) error {
	if fetch.CheckAddress(address, limit) != nil {
		return errMorePrivate
	}
	return nil
}
