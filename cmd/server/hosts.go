package main

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// errUnauthenticated: beyond this machine nobody is served without a token by mistake.
var errUnauthenticated error = &configError{"ADDR", "is not loopback and no inbound authentication is set: set AUTH_ISSUER, or AUTH_INSECURE_ALLOW_ANONYMOUS=true to serve everybody"}

// lacksAuthentication reports whether callers bring no token, and nobody has said that this is meant.
func (c *config) lacksAuthentication() bool { return c.AuthIssuer == "" && !c.AuthAllowAnonymous }

// checkBoundAddr looks at the address that ADDR has turned out to be: what is called localhost
// is whatever this machine's resolver makes of it.
func (c *config) checkBoundAddr(addr net.Addr) error {
	tcp, ok := addr.(*net.TCPAddr)
	if c.lacksAuthentication() && (!ok || !tcp.IP.IsLoopback()) {
		return errUnauthenticated
	}
	return nil
}

// addAllowedHosts completes ALLOWED_HOSTS: by host, that of ADDR, where it is unset, and by that
// of PUBLIC_URL in any case but where all are allowed.
func (c *config) addAllowedHosts(host string) {
	if len(c.AllowedHosts) == 0 {
		switch ip := net.ParseIP(host); {
		case isLoopback(host):
			c.AllowedHosts = []string{"localhost", "127.0.0.1", "::1", host}
		case host != "" && (ip == nil || !ip.IsUnspecified()):
			c.AllowedHosts = []string{strings.ToLower(host)}
		default:
			return
		}
	}
	if u, err := url.Parse(c.PublicURL); err == nil && u.Host != "" {
		c.AllowedHosts = append(c.AllowedHosts, strings.ToLower(u.Hostname()))
	}
}

// normalizeHosts writes ALLOWED_HOSTS and CORS_ORIGINS as requests are compared with them.
// A name that no request can match would refuse everybody, and say nothing at the start.
func (c *config) normalizeHosts() error {
	for i, given := range c.AllowedHosts {
		host := strings.ToLower(strings.TrimSuffix(strings.Trim(strings.TrimSpace(given), "[]"), "."))
		if host == "" || strings.ContainsAny(host, "/@* ") || strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return &configError{"ALLOWED_HOSTS", fmt.Sprintf("%q is not a host like app.example.com, without scheme and port", given)}
		}
		c.AllowedHosts[i] = host
	}
	for i, given := range c.CORSOrigins {
		u, err := url.Parse(strings.ToLower(strings.TrimSpace(given)))
		if err != nil || u.Scheme == "" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
			return &configError{"CORS_ORIGINS", fmt.Sprintf("%q is not an origin like https://app.example.com", given)}
		}
		// Browsers leave the default port out (RFC 6454 section 6.2).
		port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
		c.CORSOrigins[i] = u.Scheme + "://" + strings.TrimSuffix(u.Host, port)
	}
	return nil
}
