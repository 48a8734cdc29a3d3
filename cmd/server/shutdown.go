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

// shutdownStages holds a context per stage of the shutdown. The first signal starts the shutdown;
// each further signal cancels the next stage. Even then the process ends in order, and every run
// has its terminal event. Ending a stage makes the steps that wait under its context return early. The
// steps after them are made all the same, because a part that is not closed may lose what it has.
type shutdownStages struct {
	drainContext context.Context // ends with the second signal: stop waiting for runs
	closeContext context.Context // ends with the third: stop waiting for responses and exporters
}

// newShutdownStages counts signals until stop is called. The first signal also ends ctx, which the
// caller made with signal.NotifyContext. If ctx has ended already, because a signal arrived while
// the process was starting, the next signal is the second one.
func newShutdownStages(ctx context.Context) (h shutdownStages, stop func()) {
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// SIGHUP makes parts read their files again (startFollowing). Before those parts have started and
	// after they have ended, SIGHUP must not end the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	rest, endRest := context.WithCancel(context.Background())
	runs, endRuns := context.WithCancel(rest)
	stages := []func(){func() {}, endRuns, endRest}
	if ctx.Err() != nil {
		stages = stages[1:]
	}
	stopped, done := make(chan struct{}), make(chan struct{}) // stop was called; the goroutine has ended
	go func() {
		defer close(done)
		for _, stage := range stages {
			select {
			case <-signals:
				stage()
			case <-stopped:
				return
			}
		}
		<-stopped
	}()
	return shutdownStages{runs, rest}, func() {
		signal.Stop(signals)
		signal.Stop(hangups)
		close(stopped)
		<-done
		endRest()
	}
}

// drainService shuts a service down in an order that loses no run:
//
//  1. /readyz fails, and load balancers have delay to notice while everything still works.
//  2. New runs are refused; other replicas accept them.
//  3. Active runs may end within timeout. Then they are handed over or cancelled, each with its
//     terminal event.
//  4. When their readers have that event, the listener is closed.
//
// Without the first step, a load balancer would send new requests to a listener that refuses them.
// Without the second, the third might never end. If the listener were closed before the runs have ended,
// no client could reconnect to a run or answer its questions, and http.Server.Shutdown would wait for
// streams that wait for runs. The second signal of the operator skips the waiting of steps 1 and 3, and
// the third that of step 4 (shutdownStages).
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

// shutdownServer closes the listener and waits for the last responses. Readers have received the
// end of their runs by now. Connections that are still open after closeTimeout are cut.
func shutdownServer(ctx context.Context, handler *api.Handler, server *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	// End the sessions of MCP clients while Shutdown waits for the other responses. Close below cuts
	// connections, and must not cut short the end of those sessions.
	var hosts sync.WaitGroup
	hosts.Go(func() { handler.Close(ctx) })
	defer hosts.Wait()
	if err := server.Shutdown(ctx); err != nil {
		return server.Close()
	}
	return nil
}

// closeLogged runs one step of the shutdown within closeTimeout. It logs the error instead of
// returning it, because the other steps must still run.
func (h shutdownStages) closeLogged(logger *slog.Logger, what string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(h.closeContext, closeTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		logger.Warn("closing failed", "what", what, "error", err)
	}
}
