package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
)

// serveMetrics serves /metrics at METRICS_ADDR until end is called. here is what is left to
// serve at ADDR: nothing then, else the metrics.
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
		_ = server.Close() // what goes on is a scrape, and the next one finds nobody anyway
		<-ended
	}, nil
}
