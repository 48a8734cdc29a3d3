package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"answerd/internal/agent/admission"
	"answerd/internal/event"
	"answerd/internal/event/jetstream"
	"answerd/internal/event/memory"
)

// openTimeout bounds how long the start waits for a NATS cluster. Then the process exits, because the service cannot
// work without its log. A supervisor can restart it.
const openTimeout = 30 * time.Second

// checkLogTimeout bounds how long answerd check waits for the NATS cluster.
const checkLogTimeout = 5 * time.Second

// claimDelay returns how long this process waits after its start before it claims runs of other processes. On a shared
// log it is one lease, so that a process that crashes soon after each start does not interrupt runs. Otherwise it is 0,
// because no other process can have the runs.
func (c *config) claimDelay() time.Duration {
	if c.sharesLog() {
		return jetstream.DefaultLease
	}
	return 0
}

// checkEventDirectory creates the directory that EVENTS_URL names, with a lock file in it, unless they exist. The error
// is a *configError. If EVENTS_URL names no directory, it returns nil. It does not take the lock, because a running
// answerd may use the directory.
func (c *config) checkEventDirectory() error {
	dir, isDirectory := strings.CutPrefix(c.EventsURL.Reveal(), "file:")
	if !isDirectory {
		return nil
	}
	if err := createLockFile(dir); err != nil {
		return &configError{"EVENTS_URL", fmt.Sprintf("%s: cannot be used as a directory: %s", dir, fileReason(err))}
	}
	return nil
}

// createLockFile creates the directory dir and an empty lock file in it, unless they exist.
func createLockFile(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// describeEventLog says where events are stored, for people.
func (c *config) describeEventLog() string {
	switch {
	case c.EventsURL.IsZero():
		return "in memory, until the process ends"
	case c.sharesLog():
		return "on NATS"
	}
	return "on this disk, in " + strings.TrimPrefix(c.EventsURL.Reveal(), "file:")
}

// checkEventLog reports whether an event log on NATS can be reached, and prints the result. For other logs it prints
// nothing and returns true. It cannot open a log on disk, because a running answerd may use it.
func checkEventLog(ctx context.Context, c config, stdout io.Writer) (reachable bool) {
	if !c.sharesLog() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, checkLogTimeout)
	defer cancel()
	if err := jetstream.Check(ctx, jetstream.Options{URL: c.EventsURL.Reveal(), Credentials: c.EventsCredentialsFile}); err != nil {
		fmt.Fprintf(stdout, "event log on NATS: failed: %v\n\n", err)
		return false
	}
	fmt.Fprint(stdout, "event log on NATS: reachable\n\n")
	return true
}

// openLog opens the event log that EVENTS_URL names, and returns it with the function that closes it. The log uses at
// most maxMemory bytes of memory: a log in memory deletes ended runs to stay below, and logs on disk and on NATS use it
// for caches. ctx and openTimeout bound only the opening. The error is a *configError if a setting cannot be used.
func openLog(ctx context.Context, cfg config, maxMemory int64, logger *slog.Logger) (_ event.Log, closeLog func(), _ error) {
	if cfg.EventsURL.IsZero() {
		log := memory.New(memory.Options{Retention: cfg.EventsRetention, MaxBytes: maxMemory})
		return log, log.Close, nil
	}
	if err := cfg.checkEventDirectory(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	maxBytes := int64(cfg.EventsMaxBytes)
	if !cfg.eventsMaxBytesSet {
		maxBytes = 0 // the log chooses the bound
	}
	log, err := jetstream.Open(ctx, jetstream.Options{
		URL: cfg.EventsURL.Reveal(), Credentials: cfg.EventsCredentialsFile, NoBatch: !cfg.EventsBatch,
		Retention: cfg.EventsRetention, ThreadsRetention: cfg.ThreadsRetention,
		MaxBytes: maxBytes, Memory: maxMemory, Logger: logger,
	})
	if diskErr, ok := errors.AsType[*jetstream.DiskError](err); ok {
		return nil, nil, &configError{"EVENTS_MAX_BYTES", diskErr.Error()}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("EVENTS_URL: %w", err)
	}
	closeLog = func() {
		if err := log.Close(); err != nil {
			logger.Warn("closing failed", "what", "event log", "error", err)
		}
	}
	return log, closeLog, nil
}

// newMemoryCheck returns a function that reports whether the process is near its GOMEMLIMIT. If so, and if log is in
// memory, the function also deletes ended runs from log. The agent calls it before it admits a run: a refused run can
// be started again later, but all runs are lost if the process runs out of memory.
func newMemoryCheck(log event.Log) (isShort func() bool) {
	gauge := new(admission.MemoryGauge)
	memoryLog, ok := log.(*memory.Log)
	if !ok {
		return gauge.Short
	}
	return func() bool {
		short := gauge.Short()
		if short {
			memoryLog.DropEndedRuns()
		}
		return short
	}
}
