package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"answerd/internal/api"
	"answerd/internal/auth"
)

// limitedListener limits the number of open connections. It also accepts a quarter more than the limit, at least 4 and
// at most 256, but marks these connections as over the limit: the server then answers only health probes on them and
// refuses other requests. With that many open, Accept waits until one is closed, and the kernel queues new connections.
//
// Without a limit, connections could use up the file descriptors. Then neither the model nor an MCP server could be
// reached, and every run would fail. Connections over the limit are accepted because an orchestrator kills a process
// that does not answer its probe. A process that is only busy would lose all its runs.
type limitedListener struct {
	net.Listener
	limit  int           // connections that are accepted without the mark
	slots  chan struct{} // one element for each open connection; the capacity includes those over the limit
	closed chan struct{} // closed by Close, to end an Accept that waits for a slot
	once   sync.Once     // closes closed
}

// newLimitedListener returns a listener that accepts up to limit connections from l, and some more over the limit.
func newLimitedListener(l net.Listener, limit int) *limitedListener {
	overLimit := min(max(limit/4, 4), 256)
	return &limitedListener{Listener: l, limit: limit, slots: make(chan struct{}, limit+overLimit), closed: make(chan struct{})}
}

// Accept implements net.Listener. Calls must not overlap. Accept waits for a slot before it accepts, so that
// connections without a slot stay in the kernel's queue. The *countedConn that it returns frees the slot when it is
// closed. After Close, Accept returns net.ErrClosed. Otherwise it returns the errors of the socket; when file
// descriptors run out, net/http waits a little and calls Accept again.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(api.WriteBuffer) // if it fails, a client that reads slowly only takes more memory
	}
	return &countedConn{Conn: conn, listener: l, overLimit: len(l.slots) > l.limit}, nil
}

// Close implements net.Listener. It ends an Accept that waits for a slot. Open connections stay open.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// countedConn is a connection that holds a slot of its listener until it is closed. net/http may close it twice.
type countedConn struct {
	net.Conn
	listener  *limitedListener
	overLimit bool      // set by Accept; stays true when other connections are closed
	once      sync.Once // frees the slot
}

// Close implements net.Conn. The first call frees the connection's slot.
func (c *countedConn) Close() error {
	c.once.Do(func() { <-c.listener.slots })
	return c.Conn.Close()
}

// CloseWrite closes only the sending direction, or does nothing if the connection cannot do that. net/http calls it
// before Close, so that the client can still read the last response.
func (c *countedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// markOverLimit is the ConnContext of newServer's http.Server. It marks the context of requests on connections that are
// over the limit, with or without TLS.
func markOverLimit(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	if c, ok := c.(*countedConn); ok && c.overLimit {
		return api.OverLimit(ctx)
	}
	return ctx
}

// maxConnections returns the limit of open connections. It is MAX_CONNECTIONS, or by default 1.1 × MAX_STREAMS but at
// most a third of the open-file limit. Runs need the other file descriptors to connect to models and MCP servers.
func (c *config) maxConnections() int {
	if c.MaxConnections > 0 {
		return c.MaxConnections
	}
	limit := c.MaxStreams + c.MaxStreams/10 + 1
	if files := maxOpenFiles(); files > 0 {
		limit = min(limit, max(files/3, 1))
	}
	return limit
}

// listen returns c.listener if it is set, or else a new listener at ADDR. It refuses an address beyond loopback if that
// requires authentication that is not configured (checkBoundAddr). Connections wait in the kernel's queue until they
// are accepted.
func (c *config) listen() (net.Listener, error) {
	if c.listener != nil {
		return c.listener, nil
	}
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen on ADDR: %w", err)
	}
	if err := c.checkBoundAddr(listener.Addr()); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// serveMetrics serves /metrics at METRICS_ADDR in the background. end stops that server and waits for its goroutine.
// forAddr is the handler that the main listener must serve at /metrics: metrics if METRICS_ADDR is not set, otherwise
// nil.
func serveMetrics(c config, metrics http.Handler, logger *slog.Logger) (forAddr http.Handler, end func(), err error) {
	if c.MetricsAddr == "" {
		return metrics, func() {}, nil
	}
	listener, err := net.Listen("tcp", c.MetricsAddr)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on METRICS_ADDR: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	server := newServer(mux)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != http.ErrServerClosed {
			logger.Error("the listener of METRICS_ADDR failed", "error", err)
		}
	})
	logger.Info("serving metrics", "addr", listener.Addr().String())
	return nil, func() {
		_ = server.Close() // may cut off a scrape: the next process counts from zero anyway
		serving.Wait()
	}, nil
}

// newAuthFailureCounter creates the metric of requests that were refused because of their token. count adds one such
// request; reason must be one of auth.Reasons.
func newAuthFailureCounter(m metric.Meter) (count func(ctx context.Context, reason string), err error) {
	counter, err := m.Int64Counter("answerd.logins.refused", metric.WithUnit("{request}"),
		metric.WithDescription("Requests without a token, or with one that was refused, by reason."))
	if err != nil {
		return nil, fmt.Errorf("create the metric of refused logins: %w", err)
	}
	byReason := make(map[string]metric.AddOption) // built once, because count runs for every refused request
	for _, reason := range auth.Reasons() {
		byReason[reason] = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", reason)))
		counter.Add(context.Background(), 0, byReason[reason]) // an alert on an increase needs a zero before the first one
	}
	return func(ctx context.Context, reason string) { counter.Add(ctx, 1, byReason[reason]) }, nil
}

// newServer returns a server for h with the limits of package api. It sets no WriteTimeout, because that would end long
// streams.
func newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: api.ReadHeaderTimeout,
		ReadTimeout:       api.ReadTimeout,
		IdleTimeout:       api.IdleTimeout,
		MaxHeaderBytes:    api.MaxHeaderBytes,
		ConnContext:       markOverLimit,
	}
}

const (
	healthTimeout = 3 * time.Second // how long answerd health waits for the reply
	probeTimeout  = time.Second     // how long isAlive waits for the reply
)

// serviceURL returns the URL at which a client on this machine reaches an answerd with these settings. It reads only
// ADDR, PORT and TLS_CERT_FILE, so it works even if other settings are wrong. Every error is a *configError.
func (e environment) serviceURL() (string, error) {
	addr := e.get("ADDR")
	if port := e.get("PORT"); addr == "" && port != "" {
		addr = ":" + port
	}
	host, port, err := net.SplitHostPort(cmp.Or(addr, "127.0.0.1:8080"))
	if err != nil {
		return "", &configError{"ADDR", "must be host:port"}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if e.get("TLS_CERT_FILE") != "" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

// checkHealth returns nil if the answerd at ADDR answers GET /healthz with 200. Container images without an HTTP client
// use it as their health check.
func checkHealth(ctx context.Context, environ environment) error {
	url, err := environ.serviceURL()
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, healthTimeout)
	defer stop()
	resp, err := getHealth(ctx, url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", resp.Request.URL.Host, resp.Status)
	}
	return nil
}

// isAlive reports whether an answerd on this machine answers at url within probeTimeout. It also checks the body of the
// reply, because another service may listen there.
func isAlive(ctx context.Context, url string) bool {
	ctx, stop := context.WithTimeout(ctx, probeTimeout)
	defer stop()
	resp, err := getHealth(ctx, url)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 256))
	return err == nil && resp.StatusCode == http.StatusOK && bytes.Contains(body, []byte(`"status":"ok"`))
}

// getHealth sends GET /healthz to the answerd at url, on this machine. The caller must close the response's body.
// getHealth uses no proxy and follows no redirect. It does not verify the certificate, which is often for another name
// than the address; the request contains nothing secret.
func getHealth(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/healthz", nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	return transport.RoundTrip(req)
}
