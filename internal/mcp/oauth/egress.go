package oauth

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"answerd/internal/tlsconfig"
)

const (
	requestTimeout = 5 * time.Second // of one request, from dialing to the last byte
	maxHeader      = 64 << 10        // bytes of a reply's header
)

// egress has the two http.Clients for authorization servers. They follow no redirects, which
// would carry a secret to whatever host a reply names.
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
	limit := classifyHost(server.Hostname())
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
	if u, err := url.Parse(raw); trusted || err == nil && origin(u) == origin(e.server) {
		return e.trusted
	}
	return e.named
}

func (e *egress) close() {
	e.trusted.CloseIdleConnections()
	e.named.CloseIdleConnections()
}

// origin returns scheme, host and port of u.
func origin(u *url.URL) string { return u.Scheme + "://" + strings.ToLower(u.Host) }

// addressClass says how private an address is. A server may name servers of its own class or
// of a less private one: a server on the internet only others on the internet, a server on
// this machine, as in development, also others on this machine. A server that the
// configuration names by host name counts as public, because its DNS answer may change.
type addressClass int

const (
	public addressClass = iota
	private
	local
	forbidden // no authorization server has such an address; link-local has clouds' metadata
)

// classifyHost returns the class of a host of the configuration.
func classifyHost(host string) addressClass {
	if strings.EqualFold(host, "localhost") {
		return local
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return public
	}
	return min(classifyAddress(ip), local)
}

// special has the blocks of the IANA special-purpose registries that netip has no method
// for: shared address space, protocol assignments, documentation, benchmarks, reserved,
// and those that embed an IPv4 address, the deprecated ::/96 too. fd00:ec2::254 is a cloud's
// metadata service in a block that is private otherwise.
var special = func() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"192.88.99.0/24", "203.0.113.0/24", "240.0.0.0/4", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23",
		"2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10", "fd00:ec2::254/128",
	} {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}()

// classifyAddress returns the class of an address that DNS gave.
func classifyAddress(ip netip.Addr) addressClass {
	ip = ip.Unmap().WithZone("")
	switch {
	case ip.IsLoopback():
		return local
	case !ip.IsGlobalUnicast():
		return forbidden
	}
	for _, p := range special {
		if p.Contains(ip) {
			return forbidden
		}
	}
	if ip.IsPrivate() {
		return private
	}
	return public
}

// errMorePrivate is returned for an address that a server must not make us connect to.
var errMorePrivate = errors.New("refusing to connect: the authorization server resolves to a more private address than the MCP server")

// checkAddress returns an error if the address that is about to be dialed is more private
// than limit.
func checkAddress(address string, limit addressClass) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("read the address: %w", err)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || classifyAddress(ip) > limit {
		return errMorePrivate
	}
	return nil
}
