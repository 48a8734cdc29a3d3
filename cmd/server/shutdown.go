package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"answerd/internal/agent"
	"answerd/internal/api"
)

// closeTimeout bounds each shutdown step after the runs have ended.
const closeTimeout = 5 * time.Second

// shutdownStages holds a context per stage of the shutdown. The first signal starts the
// shutdown; each further signal cancels the next stage. Even after all of them the process
// ends orderly, and every run has its terminal event.
type shutdownStages struct {
	drainContext context.Context // ends with the second signal: no run is waited for
	closeContext context.Context // ends with the third: nor is a last response, or an exporter
}

// newShutdownStages counts signals until stop is called. The first signal ends ctx. If it has
// already, while the process was starting, the next signal is the second.
func newShutdownStages(ctx context.Context) (h shutdownStages, stop func()) {
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	rest, endRest := context.WithCancel(context.Background())
	runs, endRuns := context.WithCancel(rest)
	stages := []func(){func() {}, endRuns, endRest}
	if ctx.Err() != nil {
		stages = stages[1:]
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for _, stage := range stages {
			select {
			case <-signals:
				stage()
			case <-over:
				return
			}
		}
		<-over
	}()
	return shutdownStages{runs, rest}, func() {
		signal.Stop(signals)
		close(over)
		<-done
		endRest()
	}
}

// drainService shuts a service down in the order that loses no run. First it is not ready, and
// load balancers have delay to notice while everything still works. Then it refuses new runs,
// which other replicas can accept. Active runs may end within timeout; then they are cancelled,
// each with its terminal event. When their readers have that event, the listener is closed.
func drainService(h shutdownStages, handler *api.Handler, runs *agent.Agent, server *http.Server, delay, timeout time.Duration, logger *slog.Logger) error {
	logger.Info("draining", "delay", delay.String(), "timeout", timeout.String())
	handler.MarkUnready()
	sleepContext(h.drainContext, delay)
	runs.StopAccepting()
	logger.Info("new runs are refused")
	ctx, cancel := context.WithTimeout(h.drainContext, timeout)
	defer cancel()
	runs.Drain(ctx)
	logger.Info("runs have ended")
	return shutdownServer(h.closeContext, handler, server)
}

// sleepContext waits for d, or until ctx ends.
func sleepContext(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// shutdownServer closes the listener and waits for the last responses. Readers have received
// the end of their runs; connections that are still open after that are cut.
func shutdownServer(ctx context.Context, handler *api.Handler, server *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	var hosts sync.WaitGroup
	hosts.Go(func() { handler.Close(ctx) })
	defer hosts.Wait() // which a connection that is cut does not hold up
	if err := server.Shutdown(ctx); err != nil {
		return server.Close()
	}
	return nil
}

// closeLogged runs one step of the shutdown within closeTimeout and logs its error.
func (h shutdownStages) closeLogged(logger *slog.Logger, what string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(h.closeContext, closeTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		logger.Warn("closing failed", "what", what, "error", err)
	}
}
