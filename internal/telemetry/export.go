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

// signalExports runs the exports of one signal. It logs when exports begin to fail and when they succeed again, rather
// than each failed export. The SDK never exports a signal concurrently, so failing needs no lock.
type signalExports struct {
	signal   string // "traces", "metrics" or "logs"
	logger   *slog.Logger
	helpPage help.Page // logged when an outage begins
	failing  bool      // the last export failed

	canceled context.Context    // ended by cancel
	cancel   context.CancelFunc // cancels the current export and all later ones
}

func newSignalExports(signal string, logger *slog.Logger, helpPage help.Page) *signalExports {
	canceled, cancel := context.WithCancel(context.Background())
	return &signalExports{signal: signal, logger: logger, helpPage: helpPage, canceled: canceled, cancel: cancel}
}

// run calls export with a context that also ends when cancel is called, and returns its error. It logs if an outage
// begins or ends.
func (e *signalExports) run(ctx context.Context, export func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.canceled, cancel)()
	err := recoverPanic(func() error { return export(ctx) })
	switch {
	case err != nil && !e.failing:
		e.logger.Warn(e.signal+" do not reach the collector", "error", withoutResponse(err), e.helpPage.Attr())
	case err == nil && e.failing:
		e.logger.Info(e.signal + " reach the collector again")
	}
	e.failing = err != nil
	return err
}

// recoverPanic calls export and converts a panic to an error. Without that, a panic on the SDK's goroutine would end
// the process with all its runs.
func recoverPanic(export func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return export()
}

// withoutResponse returns the text of an exporter's error without the collector's response, because text from another
// service must not get into the log. The exporter puts one of two phrases before the response.
func withoutResponse(err error) string {
	text := err.Error()
	for _, mark := range []string{"body: ", "partial success: "} {
		text, _, _ = strings.Cut(text, mark)
	}
	return strings.TrimRight(text, " (:")
}

// flush calls shutdown, the method Shutdown of the signal's provider, which exports everything that is waiting and
// returns when the provider's goroutine has ended. If ctx ends first, flush cancels the export, so that shutdown
// returns early, and returns an error with the cause of ctx. shutdown gets a context without a deadline. With a
// deadline, it would return then even if its goroutine were still exporting.
func (e *signalExports) flush(ctx context.Context, shutdown func(context.Context) error) error {
	stop := context.AfterFunc(ctx, e.cancel)
	err := shutdown(context.WithoutCancel(ctx))
	if !stop() { // ctx has ended, so the export was cancelled
		err = context.Cause(ctx)
	}
	e.cancel()
	if err != nil {
		return fmt.Errorf("flushing %s: %w", e.signal, err)
	}
	return nil
}

// errRedirected stops an export if the collector answers with a redirect.
var errRedirected = errors.New("the collector redirected; redirects are not followed")

// OCIHeaders returns the headers that OCI Application Performance Monitoring requires with every export. dataKey is the
// APM domain's private or public data key.
func OCIHeaders(dataKey string) map[string]string {
	return map[string]string{"authorization": "dataKey " + dataKey}
}

// checkEndpoint returns an error if endpoint is empty, if the exporter would silently change it, or if headers, which
// are credentials, would be sent to it over plain HTTP. The error never contains the URL, which may have a password.
// enabled begins the error for an empty endpoint, and says why an endpoint is needed. signal is "traces", "metrics" or
// "logs".
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
		// The exporter would ignore these parts.
		return invalid("must have no user, query or fragment; credentials go into headers")
	case u.Scheme == "http" && len(headers) > 0 && !isLoopback(u.Hostname()):
		return invalid("must be https, because credentials are sent to it")
	}
	return nil
}

// isLoopback reports whether host is localhost or a loopback address.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// proxyUnlessRedirected returns the proxy for a request of the exporter. If the request follows a redirect, it returns
// errRedirected instead, because another host must not get the credentials. net/http calls it before it connects, and
// sets Request.Response only on requests that follow a redirect.
//
// The exporter has no other option to refuse redirects. It would accept an http.Client, but then ignore the timeouts
// and TLS files in OTEL_EXPORTER_OTLP_*.
func proxyUnlessRedirected(r *http.Request) (*url.URL, error) {
	if r.Response != nil {
		return nil, errRedirected
	}
	return http.ProxyFromEnvironment(r)
}
