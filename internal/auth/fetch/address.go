package fetch

import (
	"errors"
	"net"
	"net/netip"
	"strings"
)

// AddressClass says how private an address is. An MCP server may name only URLs of servers that are at most as private
// as itself. A server on the internet may not name one on this machine, but a server on this machine may, as in
// development. A server that is configured by host name counts as public, because the name's addresses may change.
type AddressClass int

// The classes, from the least to the most private one.
const (
	Public AddressClass = iota
	Private
	Local
	Forbidden // link-local addresses and others that no service uses, and metadata services of clouds
)

// ClassifyHost returns the class of a host from the configuration. It is Local for localhost, and Public for any other
// name. For an IP address it is that of ClassifyAddress, but Local instead of Forbidden, because an operator chose the
// address.
func ClassifyHost(host string) AddressClass {
	if strings.EqualFold(host, "localhost") {
		return Local
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return Public
	}
	return min(ClassifyAddress(ip), Local)
}

// specialBlocks lists the blocks in the IANA special-purpose registries for which netip has no method, as far as they
// are IPv4 or in globalUnicast: shared address space, protocol assignments, documentation, benchmarks, reserved blocks,
// and blocks whose addresses contain an IPv4 address. It also has the services, such as metadata, that AWS, Google and
// Scaleway offer to their machines in private blocks.
var specialBlocks = func() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"192.88.99.0/24", "203.0.113.0/24", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
		"fd00:ec2::/32", "fd20:ce::254/128", "fd00:42::42/128",
	} {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}()

// nat64 is the block of IPv6 addresses for which a NAT64 translator forwards to IPv4 addresses (RFC 6052 section 2.1).
// The last four bytes are the IPv4 address.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// globalUnicast is the only block from which IANA assigns public IPv6 addresses. Other blocks are reserved, or contain
// IPv4 addresses, such as the deprecated ::/96 and ::ffff:0:0:0/96.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// ClassifyAddress returns the class of an address that is about to be dialed.
func ClassifyAddress(ip netip.Addr) AddressClass {
	ip = ip.Unmap().WithZone("")
	switch {
	case ip.IsLoopback():
		return Local
	case !ip.IsGlobalUnicast():
		return Forbidden
	case nat64.Contains(ip):
		// In an IPv6-only network, DNS returns such addresses for all IPv4 hosts on the internet. RFC 6052 section 3.1
		// forbids them for IPv4 addresses that are not public.
		b := ip.As16()
		if ClassifyAddress(netip.AddrFrom4([4]byte(b[12:]))) == Public {
			return Public
		}
		return Forbidden
	case ip.Is6() && !globalUnicast.Contains(ip) && !ip.IsPrivate():
		return Forbidden
	}
	for _, p := range specialBlocks {
		if p.Contains(ip) {
			return Forbidden
		}
	}
	if ip.IsPrivate() {
		return Private
	}
	return Public
}

// errMorePrivate is the error that CheckAddress returns.
var errMorePrivate = errors.New("refusing to connect: the host resolves to a more private address than is allowed")

// CheckAddress returns an error if address, an IP address with a port, is more private than limit. Call it in the
// Control function of a net.Dialer, which gets the address that is about to be dialed. If the host name were checked
// earlier instead, DNS could return another address when the name is dialed.
func CheckAddress(address string, limit AddressClass) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return errMorePrivate
	}
	if ip, err := netip.ParseAddr(host); err != nil || ClassifyAddress(ip) > limit {
		return errMorePrivate
	}
	return nil
}
