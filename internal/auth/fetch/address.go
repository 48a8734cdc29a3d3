package fetch

import (
	"errors"
	"net"
	"net/netip"
	"strings"
)

// AddressClass says how private an address is. A server may name servers of its own class or
// of a less private one: a server on the internet only others on the internet, a server on
// this machine, as in development, also others on this machine. A server that the
// configuration names by host name counts as public, because its DNS answer may change.
type AddressClass int

// The classes, from the least private one.
const (
	Public AddressClass = iota
	Private
	Local
	Forbidden // no service has such an address; link-local has clouds' metadata
)

// ClassifyHost returns the class of a host of the configuration.
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

// special has the blocks of the IANA special-purpose registries that netip has no method
// for: shared address space, protocol assignments, documentation, benchmarks, reserved,
// and those that embed an IPv4 address, the deprecated ::/96 too. fd00:ec2::254 is a cloud's
// metadata service in a block that is private otherwise.
var special = func() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"192.88.99.0/24", "203.0.113.0/24", "240.0.0.0/4", "::/96", "64:ff9b:1::/48", "100::/64", "2001::/23",
		"2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10", "fd00:ec2::254/128",
	} {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}()

// nat64 has the addresses that translators give to IPv4 addresses (RFC 6052 section 2.1).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// ClassifyAddress returns the class of an address that DNS gave.
func ClassifyAddress(ip netip.Addr) AddressClass {
	ip = ip.Unmap().WithZone("")
	switch {
	case ip.IsLoopback():
		return Local
	case !ip.IsGlobalUnicast():
		return Forbidden
	case nat64.Contains(ip):
		// In a network with IPv6 only, DNS gives these for all of the IPv4 internet. RFC 6052 section 3.1
		// forbids them for other addresses.
		b := ip.As16()
		if ClassifyAddress(netip.AddrFrom4([4]byte(b[12:]))) == Public {
			return Public
		}
		return Forbidden
	}
	for _, p := range special {
		if p.Contains(ip) {
			return Forbidden
		}
	}
	if ip.IsPrivate() {
		return Private
	}
	return Public
}

// errMorePrivate is returned for an address that must not be connected to.
var errMorePrivate = errors.New("refusing to connect: the host resolves to a more private address than is allowed")

// CheckAddress returns an error if the address that is about to be dialed is more private than limit.
// It is for the Control function of a net.Dialer, which sees the address that DNS gave.
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
