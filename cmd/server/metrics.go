package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"answerd/internal/auth"
)

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
		metric.WithDescription("Requests whose token was not taken, or that had none, by reason."))
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
