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

// openTimeout bounds the wait for a NATS cluster at the start. After that the process ends, because the service cannot
// work without its log; a supervisor can start it again.
const openTimeout = 30 * time.Second

// checkLogTimeout bounds how long answerd check waits for the NATS cluster.
const checkLogTimeout = 5 * time.Second

// claimDelay returns how long after its start this process waits before it claims runs of other processes. On a shared
// log it is one lease, so that a process which dies soon after each start interrupts no runs. Otherwise it is 0,
// because other processes cannot have the runs.
func (c *config) claimDelay() time.Duration {
	if c.sharesLog() {
		return jetstream.DefaultLease
	}
	return 0
}

// checkEventDirectory creates the directory that EVENTS_URL names, and a lock file in it, if they do not exist. It
// returns a *configError if they cannot be created or written, and nil if EVENTS_URL names no directory. It does not
// take the lock, so that it does not disturb a running answerd that uses the directory.
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

// createLockFile creates a directory, and an empty lock file in it, unless they exist.
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

// describeEventLog returns where events are stored, in words.
func (c *config) describeEventLog() string {
	switch {
	case c.EventsURL.IsZero():
		return "in memory, until the process ends"
	case c.sharesLog():
		return "on NATS"
	}
	return "on this disk, in " + strings.TrimPrefix(c.EventsURL.Reveal(), "file:")
}

// printEventLog prints whether an event log on NATS can be reached, and reports whether it can. For other logs it
// prints nothing and returns true: a directory cannot be opened to check it, because a running answerd may use it.
func printEventLog(ctx context.Context, c config, stdout io.Writer) bool {
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

// openLog opens the event log that EVENTS_URL names, and returns the function that closes it. The log uses at most
// maxMemory bytes of memory. A log in memory deletes ended runs to stay within that; logs on disk and on NATS use
// memory for caches. ctx and openTimeout bound only the opening. An error about a setting that cannot be used is a
// *configError.
func openLog(ctx context.Context, cfg config, maxMemory int64, logger *slog.Logger) (event.Log, func(), error) {
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
	return log, func() {
		if err := log.Close(); err != nil {
			logger.Warn("closing failed", "what", "event log", "error", err)
		}
	}, nil
}

// newMemoryCheck returns a function that reports whether the process is near its GOMEMLIMIT. If it is and log is in
// memory, the function also deletes ended runs from log. The agent calls isShort before it admits a run: a refused run
// can be started again later, while all runs are lost if the process runs out of memory.
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
