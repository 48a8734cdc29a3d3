package main

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// cleanHosts writes ALLOWED_HOSTS and CORS_ORIGINS as requests are compared with them.
// A name that no request can match would refuse everybody, and say nothing at the start.
func (c *config) cleanHosts() error {
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
