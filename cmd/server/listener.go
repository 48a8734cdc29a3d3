package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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

// limitedListener limits the open connections. A few beyond the limit are accepted and marked as
// over the limit: requests on them are refused, and probes are answered. Beyond those, Accept
// waits until a connection is closed; the kernel queues a few more.
//
// Without a limit, connections would use up the file descriptors, and then neither the model nor an MCP
// server could be reached: every run would fail, and not only the clients that are too many. The few
// beyond it exist because an orchestrator that gets no answer to its probe kills the process, with all
// its runs, although it is only busy.
type limitedListener struct {
	net.Listener
	limit  int
	slots  chan struct{} // one for every connection that may be open
	closed chan struct{}
	once   sync.Once // closes closed

	mu   sync.Mutex // protects open
	open int
}

// newLimitedListener returns a listener that accepts limit connections from l, and a few over
// the limit.
func newLimitedListener(l net.Listener, limit int) *limitedListener {
	return &limitedListener{Listener: l, limit: limit, slots: make(chan struct{}, limit+min(max(limit/4, 4), 256)), closed: make(chan struct{})}
}

// Accept implements net.Listener. It waits for a slot before it accepts, so that connections
// beyond all slots stay in the kernel's queue. It returns the errors of the socket, for example if
// there are no more file descriptors: net/http then waits a little and tries again.
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
		// After an error, the kernel buffers more for a reader that stalls.
		_ = tcp.SetWriteBuffer(api.WriteBuffer)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	return &countedConn{Conn: conn, listener: l, overLimit: l.open > l.limit}, nil
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// countedConn is a connection that its listener counts until it is closed. net/http may close it
// twice.
type countedConn struct {
	net.Conn
	listener  *limitedListener
	overLimit bool      // set by Accept; stays although other connections are closed
	once      sync.Once // gives the slot back
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.listener.mu.Lock()
		c.listener.open--
		c.listener.mu.Unlock()
		<-c.listener.slots
	})
	return c.Conn.Close()
}

// CloseWrite lets net/http close a connection so that the client can still read the last
// response.
func (c *countedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// markOverLimit marks the requests of connections over the limit. It is the http.Server's
// ConnContext.
func markOverLimit(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	if c, ok := c.(*countedConn); ok && c.overLimit {
		return api.OverLimit(ctx)
	}
	return ctx
}

// maxConnections returns the limit of open connections. By default it leaves two thirds of the
// file descriptors to the connections that runs need to the model and to MCP servers.
func (c *config) maxConnections() int {
	if c.MaxConnections > 0 {
		return c.MaxConnections
	}
	n := c.MaxStreams + c.MaxStreams/10 + 1
	if files := maxOpenFiles(); files > 0 {
		n = min(n, max(files/3, 1))
	}
	return n
}

// listen listens at ADDR. Connections wait in the kernel's queue until they are accepted.
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

// serveMetrics serves /metrics at METRICS_ADDR until end is called. If METRICS_ADDR is not set,
// it returns the handler to serve at ADDR.
func serveMetrics(c config, metrics http.Handler, logger *slog.Logger) (here http.Handler, end func(), err error) {
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
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); err != http.ErrServerClosed {
			logger.Error("the listener of METRICS_ADDR failed", "error", err)
		}
	}()
	logger.Info("serving metrics", "addr", listener.Addr().String())
	return nil, func() {
		_ = server.Close() // cuts a scrape, which the next start makes up for
		<-ended
	}, nil
}

// newAuthFailureCounter creates the counter of requests that were refused because of their token,
// and returns the function that counts one.
func newAuthFailureCounter(m metric.Meter) (func(ctx context.Context, reason string), error) {
	counter, err := m.Int64Counter("answerd.logins.refused", metric.WithUnit("{request}"),
		metric.WithDescription("Requests without a token, or with one that was refused, by reason."))
	if err != nil {
		return nil, fmt.Errorf("create the metric of refused logins: %w", err)
	}
	by := make(map[string]metric.AddOption)
	for _, reason := range auth.Reasons() {
		by[reason] = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", reason)))
		counter.Add(context.Background(), 0, by[reason]) // an alert on an increase needs a zero before the first one
	}
	return func(ctx context.Context, reason string) { counter.Add(ctx, 1, by[reason]) }, nil
}

// newServer returns a server with the bounds of package api. It has no WriteTimeout, which would
// end streams.
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

const healthTimeout = 3 * time.Second

// serviceURL returns the URL at which a client on this machine reaches an answerd that has these settings.
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

// checkHealth asks the answerd at ADDR whether it is alive. Container images that have no HTTP
// client use it as their health check.
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

// getHealth sends GET /healthz to the answerd at url, on this machine. It bypasses proxies and follows no
// redirect. It does not verify the certificate, which is often for another name than the address; nothing
// secret is sent.
func getHealth(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/healthz", nil)
	if err != nil {
		return nil, err
	}
	return (&http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}).RoundTrip(req)
}
