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
)

const (
	requestTime = 5 * time.Second // of one request, from dialling to the last byte
	maxHeader   = 64 << 10        // bytes of a reply's header
)

// egress is how authorization servers are reached: two http.Clients that follow no
// redirects, which would carry a secret to whatever host a reply names (F19).
type egress struct {
	server *url.URL
	// trusted is for what the configuration names, the MCP server's own origin included:
	// it may be anywhere, and proxies from the environment are used (S3.7).
	trusted *http.Client
	// named is for what a server named: it is checked at dial time, when the address is
	// known that DNS gave, so that no proxy may stand between.
	named *http.Client
}

func newEgress(server *url.URL) *egress {
	pooled := func() *http.Transport {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost, t.MaxResponseHeaderBytes = 4, maxHeader
		return t
	}
	guarded := pooled()
	guarded.Proxy = nil
	limit := nearness(server.Hostname())
	guarded.DialContext = (&net.Dialer{Timeout: requestTime, Control: func(_, address string, _ syscall.RawConn) error {
		return checkAddress(address, limit)
	}}).DialContext
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &egress{
		server:  server,
		trusted: &http.Client{Transport: pooled(), CheckRedirect: stay, Timeout: requestTime},
		named:   &http.Client{Transport: guarded, CheckRedirect: stay, Timeout: requestTime},
	}
}

// to is the client for a URL; trusted says that the configuration named who named it.
func (e *egress) to(raw string, trusted bool) *http.Client {
	if u, err := url.Parse(raw); trusted || err == nil && origin(u) == origin(e.server) {
		return e.trusted
	}
	return e.named
}

func (e *egress) close() {
	e.trusted.CloseIdleConnections()
	e.named.CloseIdleConnections()
}

// origin is scheme, host and port of u.
func origin(u *url.URL) string { return u.Scheme + "://" + strings.ToLower(u.Host) }

// How near an address is to us. A server may lead us to what is as near as it is itself
// or further away: one on the internet to the internet only, one on this machine, as in
// development, to this machine too. By its name a server counts as far away, whatever
// DNS says, because it could say something else each time.
const (
	public = iota
	private
	local
	forbidden // nobody's authorization server is there: link-local holds clouds' metadata
)

// nearness is how near a host of the configuration is.
func nearness(host string) int {
	if strings.EqualFold(host, "localhost") {
		return local
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return public
	}
	return min(nearnessOf(ip), local)
}

// special are the blocks of the IANA special-purpose registries that netip has no word
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

func nearnessOf(ip netip.Addr) int {
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

// errNearer ends the dialling of an address that a server must not lead us to.
var errNearer = errors.New("the address is nearer to this machine than the server that named it")

// checkAddress is called with the address that is about to be dialled.
func checkAddress(address string, limit int) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("read the address: %w", err)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || nearnessOf(ip) > limit {
		return errNearer
	}
	return nil
}
