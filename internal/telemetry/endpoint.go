package telemetry

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
)

// errRedirected stops an export that the collector wants to send elsewhere.
var errRedirected = errors.New("the collector redirected; redirects are not followed")

// OCIHeaders are the headers that OCI Application Performance Monitoring wants with
// every export: the data key (private or public) of the APM domain.
func OCIHeaders(dataKey string) map[string]string {
	return map[string]string{"authorization": "dataKey " + dataKey}
}

// checkEndpoint refuses what the exporter would silently drop or leak. Its errors
// never contain the URL, which may hold a password.
func checkEndpoint(endpoint string, headers map[string]string) error {
	const settings = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT or OCI_APM_TRACES_URL"
	if endpoint == "" {
		return fmt.Errorf("ENABLE_TRACING is true, but there is no endpoint: set %s", settings)
	}
	bad := func(what string) error { return fmt.Errorf("the traces endpoint (%s) %s", settings, what) }
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return bad("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("must begin with http:// or https://")
	case u.Hostname() == "":
		return bad("names no host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		// The exporter keeps only scheme, host and path.
		return bad("must have no user, query or fragment; credentials go into headers")
	case u.Scheme == "http" && len(headers) > 0 && !loopback(u.Hostname()):
		return bad("must be https, because credentials are sent to it")
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// proxyUnlessRedirected is the exporter's way to its proxy, and the only place where
// its redirects can be refused while it keeps the OTEL_EXPORTER_OTLP_* time-out and
// TLS files: giving it an http.Client of our own would switch those off. net/http
// sets Response only on requests that a redirect caused, and asks for the proxy
// before it connects, so no credential reaches the other host.
func proxyUnlessRedirected(r *http.Request) (*url.URL, error) {
	if r.Response != nil {
		return nil, errRedirected
	}
	return http.ProxyFromEnvironment(r)
}
