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

// closeTimeout bounds what is left to do once every run has ended.
const closeTimeout = 5 * time.Second

// shutdownStages is how much of its end the process is still to wait for. The first signal
// begins the end; each one after it asks for less waiting. A process that gets them
// all exits by itself all the same, and every run has said how it ended.
type shutdownStages struct {
	drainContext context.Context // ends with the second signal: no run is waited for
	closeContext context.Context // ends with the third: nor is a last response, or an exporter
}

// newShutdownStages counts signals until stop. ctx is what the first of them ends; where it has
// come already, as the process was starting, the next is the second.
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

// drainService ends a service in the order that loses nobody: whoever balances load is told,
// and given delay to hear it while everything still works; new runs are refused, where
// others can take them; those that go on may end within timeout; the rest are
// cancelled, each with its own last event; and when their readers have it, nobody
// listens any more.
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

// sleepContext waits for d, or for the end of ctx.
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

// shutdownServer closes the listener and waits for the last responses. Followers have seen
// their runs end; whoever still holds a connection is cut.
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

// closeLogged runs one last step, bounded, and logs what it could not do.
func (h shutdownStages) closeLogged(logger *slog.Logger, what string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(h.closeContext, closeTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		logger.Warn("closing failed", "what", what, "error", err)
	}
}
