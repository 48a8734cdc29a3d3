package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/jetstream"
)

// openTimeout bounds the wait for a NATS cluster at start-up. Without its log the
// service could do nothing, so it is started again by whoever watches it.
const openTimeout = 30 * time.Second

// openLog opens the log that EVENTS_URL names, and returns what closes it.
func openLog(ctx context.Context, c config, logger *slog.Logger) (event.Log, func(), error) {
	if c.EventsURL.IsZero() {
		return event.NewMemory(event.MemoryOptions{Retention: c.EventsRetention, MaxBytes: int64(c.EventsMaxBytes)}), func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	log, err := jetstream.Open(ctx, jetstream.Options{
		URL: c.EventsURL.Reveal(), Retention: c.EventsRetention, MaxBytes: int64(c.EventsMaxBytes), Logger: logger,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("EVENTS_URL: %w", err)
	}
	return log, func() {
		if err := log.Close(); err != nil {
			logger.Warn("closing failed", "what", "event log", "error", err)
		}
	}, nil
}
