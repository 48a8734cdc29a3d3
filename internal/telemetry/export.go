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

// outage logs when exports begin to fail and when they succeed again, but not each failed export.
type outage struct {
	logger       *slog.Logger
	begins, ends string    // the messages of the log
	help         help.Page // for the line about the beginning
	failing      bool      // the last export failed
}

// record records the result of an export, which is nil after a success, and logs if an outage begins or ends.
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

// withoutResponse returns the text of an exporter's error without the collector's response, because text of another
// service must not get into the log. The response follows one of two phrases.
func withoutResponse(err error) string {
	text := err.Error()
	for _, mark := range []string{"body: ", "partial success: "} {
		text, _, _ = strings.Cut(text, mark)
	}
	return strings.TrimRight(text, " (:")
}

// flush calls shutdown, the method Shutdown of a provider, which exports what waits and returns when the provider's
// goroutine has ended. If ctx ends first, flush calls cancelExport, so that shutdown returns early, and returns an
// error with the cause of ctx. shutdown gets a context without a deadline, because it would otherwise return at the
// deadline although its goroutine is still exporting. what names the signal in errors.
func flush(
	ctx context.Context, what string, shutdown func(context.Context) error, cancelExport context.CancelFunc,
) error {
	stop := context.AfterFunc(ctx, cancelExport)
	err := shutdown(context.WithoutCancel(ctx))
	if !stop() { // ctx has ended, and the export was cancelled.
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

// checkEndpoint returns an error for an endpoint that is empty, that the exporter would silently change, or that
// would receive headers, which are credentials, over plain HTTP. Its errors never contain the URL, which may have a
// password. They begin with enabled, which says why the endpoint is needed. signal is traces, metrics or logs.
func checkEndpoint(enabled, signal, endpoint string, headers map[string]string) error {
	settings := "OTEL_EXPORTER_OTLP_" + strings.ToUpper(signal) + "_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT"
	if signal == "traces" {
		settings = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT or OCI_APM_TRACES_URL"
	}
	if endpoint == "" {
		return fmt.Errorf("%s, but there is no endpoint: set %s", enabled, settings)
	}
	invalid := func(reason string) error { return fmt.Errorf("the %s endpoint (%s) %s", signal, settings, reason) }
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return invalid("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return invalid("must begin with http:// or https://")
	case u.Hostname() == "":
		return invalid("names no host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		// The exporter uses only scheme, host and path.
		return invalid("must have no user, query or fragment; credentials go into headers")
	case u.Scheme == "http" && len(headers) > 0 && !isLoopback(u.Hostname()):
		return invalid("must be https, because credentials are sent to it")
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

// proxyUnlessRedirected returns the proxy for a request of the exporter, or errRedirected for the request that follows
// a redirect, because another host must not receive the credentials. net/http sets Response only on requests that a
// redirect caused, and calls this function before it connects.
//
// The exporter has no other option by which redirects can be refused and OTEL_EXPORTER_OTLP_* timeouts and TLS files
// still apply: it would ignore these settings with an http.Client of ours.
func proxyUnlessRedirected(r *http.Request) (*url.URL, error) {
	if r.Response != nil {
		return nil, errRedirected
	}
	return http.ProxyFromEnvironment(r)
}
