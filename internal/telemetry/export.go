package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"

	"answerd/internal/help"
)

// outage logs when exports begin to fail, and when they work again: once each, not for each batch.
type outage struct {
	logger       *slog.Logger
	begins, ends string
	help         help.Page
	failing      bool
}

// record records the result of an export.
func (o *outage) record(err error) {
	switch {
	case err != nil && !o.failing:
		o.logger.Warn(o.begins, "error", withoutResponse(err), o.help.Attr())
	case err == nil && o.failing:
		o.logger.Info(o.ends)
	}
	o.failing = err != nil
}

// exportRecovered calls the exporter and returns a panic as an error. On the SDK's goroutine, a
// panic would end the process and all its runs.
func exportRecovered(export func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return export()
}

// withoutResponse returns the text of err without the collector's response, which another service
// wrote. In the exporter's errors it follows one of two phrases.
func withoutResponse(err error) string {
	text := err.Error()
	for _, mark := range []string{"body: ", "partial success: "} {
		text, _, _ = strings.Cut(text, mark)
	}
	return strings.TrimRight(text, " (:")
}

// flush exports what waits, until ctx ends. The provider gets no deadline: with one it would return and
// leave its goroutine in the export. Cancelling the export ends both.
func flush(ctx context.Context, what string, shutdown func(context.Context) error, cancelExport context.CancelFunc) error {
	stop := context.AfterFunc(ctx, cancelExport)
	err := shutdown(context.WithoutCancel(ctx))
	if !stop() { // the AfterFunc has run, so the export was cancelled
		return fmt.Errorf("flushing %s: %w", what, context.Cause(ctx))
	}
	cancelExport()
	if err != nil {
		return fmt.Errorf("flushing %s: %w", what, err)
	}
	return nil
}

// errRedirected stops an export that the collector redirects.
var errRedirected = errors.New("the collector redirected; redirects are not followed")

// OCIHeaders returns the headers that OCI Application Performance Monitoring requires in
// every export: the data key (private or public) of the APM domain.
func OCIHeaders(dataKey string) map[string]string {
	return map[string]string{"authorization": "dataKey " + dataKey}
}

// checkEndpoint returns an error for an endpoint that the exporter would silently change, or that
// would receive credentials over plain HTTP. Its errors never contain the URL, which may have a
// password. enabled says which setting exports the signal.
func checkEndpoint(enabled, signal, endpoint string, headers map[string]string) error {
	settings := "OTEL_EXPORTER_OTLP_" + strings.ToUpper(signal) + "_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT"
	if signal == "traces" {
		settings = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT or OCI_APM_TRACES_URL"
	}
	if endpoint == "" {
		return fmt.Errorf("%s, but there is no endpoint: set %s", enabled, settings)
	}
	bad := func(what string) error { return fmt.Errorf("the %s endpoint (%s) %s", signal, settings, what) }
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
	case u.Scheme == "http" && len(headers) > 0 && !isLoopback(u.Hostname()):
		return bad("must be https, because credentials are sent to it")
	}
	return nil
}

// isLoopback reports whether host is localhost or a loopback address.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// proxyUnlessRedirected returns the exporter's proxy, or an error for a redirect, which must not
// receive the credentials. net/http sets Response only on requests that a redirect caused, and
// asks for the proxy before it connects.
//
// The exporter has no other hook for this that keeps the OTEL_EXPORTER_OTLP_* timeout and TLS
// files: an http.Client of our own would switch those off.
func proxyUnlessRedirected(r *http.Request) (*url.URL, error) {
	if r.Response != nil {
		return nil, errRedirected
	}
	return http.ProxyFromEnvironment(r)
}
