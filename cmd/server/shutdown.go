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

// closeTimeout bounds each step of the shutdown after the runs have ended.
const closeTimeout = 5 * time.Second

// shutdownStages holds a context per stage of the shutdown. The first signal starts the shutdown. The second and the
// third signal each end one of the contexts, so that steps which wait under it return early. All steps are made even
// then: every run gets its terminal event, and every part is closed, because otherwise it could lose what it holds.
type shutdownStages struct {
	drainContext context.Context // ends with the second signal: stop waiting for runs
	closeContext context.Context // ends with the third signal: stop waiting for responses and exporters
}

// newShutdownStages counts the signals SIGINT and SIGTERM until stop is called. The first signal also ends ctx, which
// main made with signal.NotifyContext. If ctx has ended already, because a signal arrived while the process was
// starting, the next signal counts as the second one. stop waits for the goroutine that counts, and ends both contexts.
func newShutdownStages(ctx context.Context) (stages shutdownStages, stop func()) {
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// SIGHUP makes parts read their files again (startFollowing). Before those parts have started and
	// after they have ended, SIGHUP must not end the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	closeContext, endClose := context.WithCancel(context.Background())
	drainContext, endDrain := context.WithCancel(closeContext)
	onSignal := []func(){func() {}, endDrain, endClose} // by the number of the signal; ctx is for the first one
	if ctx.Err() != nil {
		onSignal = onSignal[1:]
	}
	stopped := make(chan struct{}) // closed by stop
	done := make(chan struct{})    // closed when the goroutine has ended
	go func() {
		defer close(done)
		for _, endStage := range onSignal {
			select {
			case <-signals:
				endStage()
			case <-stopped:
				return
			}
		}
		<-stopped
	}()
	return shutdownStages{drainContext, closeContext}, func() {
		signal.Stop(signals)
		signal.Stop(hangups)
		close(stopped)
		<-done
		endClose() // ends drainContext too
	}
}

// drainService shuts a service down in an order that loses no run, and returns the error of closing the listener:
//
//  1. /readyz fails. For delay, everything else still works, and load balancers can notice.
//  2. New runs are refused; other replicas accept them.
//  3. Active runs may end within timeout. Then they are handed over to other replicas if the log is durable, or else
//     end with a terminal event.
//  4. The listener is closed, and the last responses may end within closeTimeout.
//
// Without step 1, a load balancer would send new requests to a listener that refuses them. Without step 2, step 3 might
// never end. If the listener were closed before step 3, no client could reconnect to a run or answer its interrupts,
// and http.Server.Shutdown would wait for streams that wait for runs. The operator's second signal ends the waiting of
// steps 1 and 3, and the third signal that of step 4 (shutdownStages).
func drainService(stages shutdownStages, handler *api.Handler, runs *agent.Agent, server *http.Server, delay, timeout time.Duration, logger *slog.Logger) error {
	logger.Info("draining", "delay", delay.String(), "timeout", timeout.String())
	handler.MarkUnready()
	sleepContext(stages.drainContext, delay)
	runs.StopAccepting()
	logger.Info("new runs are refused")
	ctx, cancel := context.WithTimeout(stages.drainContext, timeout)
	defer cancel()
	runs.Drain(ctx)
	logger.Info("runs have ended")
	return shutdownServer(stages.closeContext, handler, server)
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

// shutdownServer closes the listener and waits for the last responses, which end soon because all runs have ended. It
// cuts the connections that still have a request after closeTimeout or when ctx ends. It also ends the sessions of MCP
// clients, and returns when they are gone.
func shutdownServer(ctx context.Context, handler *api.Handler, server *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	// Shutdown waits for the streams of MCP clients, too, so their sessions must end at the same time.
	var sessions sync.WaitGroup
	sessions.Go(func() { handler.Close(ctx) })
	defer sessions.Wait()
	if err := server.Shutdown(ctx); err != nil {
		return server.Close()
	}
	return nil
}

// closeLogged calls closePart with a context that ends after closeTimeout or with the third signal. It logs the error
// instead of returning it, because the steps after it must still run. what names the part in the log.
func (s shutdownStages) closeLogged(logger *slog.Logger, what string, closePart func(context.Context) error) {
	ctx, cancel := context.WithTimeout(s.closeContext, closeTimeout)
	defer cancel()
	if err := closePart(ctx); err != nil {
		logger.Warn("closing failed", "what", what, "error", err)
	}
}
