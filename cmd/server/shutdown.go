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

// closeTimeout bounds each step of the shutdown that follows the end of the runs.
const closeTimeout = 5 * time.Second

// shutdownStages holds one context for each stage of the shutdown. The first signal starts the shutdown. The second and
// third signals each end one context, so that the steps that wait for it return early. Even then every step runs: each
// run still gets its terminal event, and each part is closed, so that it does not lose data.
type shutdownStages struct {
	drainContext context.Context // ends with the second signal: stop waiting for runs
	closeContext context.Context // ends with the third signal: stop waiting for responses and exporters
}

// newShutdownStages counts SIGINT and SIGTERM until stop is called. The first signal also ends ctx, through main's
// signal.NotifyContext. If ctx has already ended, a signal arrived during the start, and the next one counts as the
// second. stop waits for the counting goroutine and ends both contexts.
func newShutdownStages(ctx context.Context) (stages shutdownStages, stop func()) {
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// SIGHUP makes parts reload their files (startFollowing). It must not end the process before these parts have
	// started or after they have ended.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	closeContext, endClose := context.WithCancel(context.Background())
	drainContext, endDrain := context.WithCancel(closeContext)
	onSignal := []func(){func() {}, endDrain, endClose} // indexed by the number of earlier signals; NotifyContext handles the first one
	if ctx.Err() != nil {
		onSignal = onSignal[1:]
	}
	var counting sync.WaitGroup
	counting.Go(func() {
		for _, endStage := range onSignal {
			select {
			case <-signals:
				endStage()
			case <-closeContext.Done(): // stop was called
				return
			}
		}
	})
	return shutdownStages{drainContext, closeContext}, func() {
		signal.Stop(signals)
		signal.Stop(hangups)
		endClose() // ends drainContext and the goroutine too
		counting.Wait()
	}
}

// drainService shuts the service down in an order that loses no run. It returns the error of closing the listener.
//
//  1. /readyz fails. For delay, everything else still works, so that load balancers can notice.
//  2. New runs are refused, so that step 3 can end. Other replicas accept them.
//  3. Active runs may end within timeout. The rest are handed over to other replicas if the log is durable. Otherwise
//     they end with a terminal event.
//  4. The listener is closed, and the last responses may end within closeTimeout.
//
// Without step 1, a load balancer would send new requests to a listener that refuses them. If the listener were closed
// before step 3, clients could not reconnect to a run or answer its interrupts, and http.Server.Shutdown would wait for
// streams that wait for runs. The operator's second signal ends the waiting in steps 1 and 3, and the third signal that
// in step 4 (shutdownStages).
func drainService(stages shutdownStages, handler *api.Handler, runs *agent.Agent, server *http.Server, delay, timeout time.Duration, logger *slog.Logger) error {
	logger.Info("draining", "delay", delay.String(), "timeout", timeout.String())
	handler.MarkUnready()
	select {
	case <-time.After(delay):
	case <-stages.drainContext.Done():
	}
	runs.StopAccepting()
	logger.Info("new runs are refused")
	ctx, cancel := context.WithTimeout(stages.drainContext, timeout)
	defer cancel()
	runs.Drain(ctx)
	logger.Info("runs have ended")
	return shutdownServer(stages.closeContext, handler, server)
}

// shutdownServer closes the listener and waits for the last responses, which end soon because all runs have ended.
// After closeTimeout, or when ctx ends, it cuts off the connections that still have a request. It also ends the
// sessions of MCP clients and waits until they have ended.
func shutdownServer(ctx context.Context, handler *api.Handler, server *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	// Shutdown also waits for the streams of MCP clients, so their sessions must end at the same time.
	var sessions sync.WaitGroup
	sessions.Go(func() { handler.Close(ctx) })
	defer sessions.Wait()
	if err := server.Shutdown(ctx); err != nil {
		return server.Close()
	}
	return nil
}

// closeLogged calls closePart with a context that ends after closeTimeout or at the third signal. It logs an error
// instead of returning it, because the steps after it must still run. what names the part in the log.
func (s shutdownStages) closeLogged(logger *slog.Logger, what string, closePart func(context.Context) error) {
	ctx, cancel := context.WithTimeout(s.closeContext, closeTimeout)
	defer cancel()
	if err := closePart(ctx); err != nil {
		logger.Warn("closing failed", "what", what, "error", err)
	}
}
