package jetstream

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/event"
	"answerd/internal/event/jetstream/threads"
	"answerd/internal/help"
)

// How an embedded log recovers from a full disk
//
// Deleting a run needs disk space too: the server records each deletion, and compacts a file by
// writing it again. A reserve file of reserveBytes holds space for that. When a write has
// failed, the log becomes unready and accepts no events (diskFull). The server accepts no writes
// after one has failed, so recoverDisk removes the reserve and opens the store again. It then
// deletes the runs and threads whose retention has passed, until the reserve fits on the disk again. It
// deletes no other run, so no acknowledged event is lost. If that is not enough although runs have
// expired, it deletes the threads that were not updated for longest (relieve).

const (
	// diskCheckInterval separates two attempts to recover a disk that was full.
	diskCheckInterval = time.Second
	// diskRoom bytes must be free in addition to the reserve before the log accepts events
	// again, and openRoom bytes before its store is opened.
	diskRoom = 4 << 20
	openRoom = 1 << 20
	// reserveBytes covers compacting the largest file of a stream (8 MiB in nats-server 2.15),
	// and diskRoom.
	reserveBytes = 12 << 20
	reserveName  = "reserve"
	// minMaxBytes bounds from below what fitDisk chooses.
	minMaxBytes = 1 << 20
	// compactInterval makes the server compact its files every second while the disk is full.
	// The server's default of two minutes would delay the recovery.
	compactInterval = time.Second
)

// DiskError reports that the file system of a log has too little space for Options.MaxBytes.
type DiskError struct {
	Need int64 // bytes for the log, its index and its reserve
	Have int64 // bytes that are free or belong to the log already
}

func (e *DiskError) Error() string {
	return fmt.Sprintf("the log needs %d MiB on its file system, which has %d MiB for it", e.Need>>20, e.Have>>20)
}

// fitDisk returns the size limit of a log in dir. A given maxBytes is returned as it is, or a
// *DiskError if the file system is too small for it. If maxBytes is 0, fitDisk chooses byDefault or
// the space available, whichever is less, but at least what the log has stored: a stream drops
// messages that exceed its limit.
func fitDisk(dir string, maxBytes, byDefault int64, logger *slog.Logger) (int64, error) {
	free, err := freeBytes(dir)
	if err != nil {
		return 0, err
	}
	have := free + bytesIn(dir)
	bound := (have - reserveBytes) / 5 * 4
	switch {
	case maxBytes > bound:
		return 0, &DiskError{Need: maxBytes/4*5 + reserveBytes, Have: have}
	case maxBytes > 0:
		return maxBytes, nil
	}
	stored := int64(0)
	for _, stream := range []string{runsName, threads.HeadsStream, threads.TurnsStream} {
		stored += bytesIn(filepath.Join(dir, "jetstream", server.DEFAULT_GLOBAL_ACCOUNT, "streams", stream, "msgs"))
	}
	if bound < byDefault {
		bound = max(bound, stored, minMaxBytes)
		logger.Warn("the bound of the event log is smaller than its default, because its file system has no more space", "max_bytes", bound, "default", byDefault)
		return bound, nil
	}
	return max(byDefault, min(stored, event.DefaultMaxBytes)), nil
}

// bytesIn returns the bytes of all files below dir. Files that cannot be read count as empty.
func bytesIn(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil
		}
		if info, err := entry.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}

// reservePath returns the path of the reserve.
func (e *embedded) reservePath() string { return filepath.Join(e.dir, reserveName) }

// prepareDisk makes the reserve if there is space for it, before the store is opened. It
// reports false on a full disk, whose reserve it releases.
func (e *embedded) prepareDisk() bool {
	if info, err := os.Stat(e.reservePath()); err == nil && info.Size() == reserveBytes && e.hasFree(diskRoom) {
		return true
	}
	e.releaseReserve() // it may be incomplete
	return e.makeReserve() == nil
}

// makeReserve writes the reserve, if that leaves diskRoom free. The bytes are random, because
// some file systems compress.
func (e *embedded) makeReserve() error {
	if !e.hasFree(reserveBytes + diskRoom) {
		return errors.New("the disk has no space for the reserve of the event log")
	}
	data := make([]byte, reserveBytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // never fails
	if err := os.WriteFile(e.reservePath(), data, 0o600); err != nil {
		e.releaseReserve()
		return fmt.Errorf("write the reserve of the event log: %w", err)
	}
	return nil
}

// releaseReserve removes the reserve. It reports whether there was one.
func (e *embedded) releaseReserve() bool { return os.Remove(e.reservePath()) == nil }

// hasFree reports whether n bytes are free on the disk.
func (e *embedded) hasFree(n int64) bool {
	free, err := freeBytes(e.dir)
	return err == nil && free >= n
}

// isHealthy returns the error that the server reports for its own health, or nil.
func (e *embedded) isHealthy() error {
	if health := e.server.Healthz(&server.HealthzOptions{}); health.Status != "ok" {
		return errors.New(health.Error)
	}
	return nil
}

// diskFailed reports whether the disk of an embedded log accepts no writes. No append then
// succeeds before recoverDisk. The server does not answer an append that it could not write, so
// diskFailed asks the server for its health after a failed append.
func (l *Log) diskFailed() bool {
	if l.embedded == nil {
		return false
	}
	if l.diskFull.Load() {
		return true
	}
	err := l.embedded.isHealthy()
	if err == nil || l.ctx.Err() != nil {
		return false
	}
	if !l.diskFull.Swap(true) {
		l.logger.Error("event log disk not writable, refusing new runs", "error", err, help.EventLogSpace.Attr())
	}
	return true
}

// recoverDiskLoop calls recoverDisk while the disk of the embedded log is full.
func (l *Log) recoverDiskLoop() {
	tick := time.NewTicker(diskCheckInterval)
	defer tick.Stop()
	var full shortage
	for {
		select {
		case <-tick.C:
			if l.diskFull.Load() {
				l.recoverDisk(&full)
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// recoverDisk makes one attempt to recover from a full disk. Opening the store again loses
// nothing: acknowledged events are on the disk, and jobs are delivered again when their leases
// end.
func (l *Log) recoverDisk(full *shortage) {
	defer l.recoverPanic("recover from a full disk")
	e := l.embedded
	if released := e.releaseReserve(); released || e.isHealthy() != nil {
		if !e.hasFree(openRoom) {
			return
		}
		if err := e.reopenStore(compactInterval); err != nil {
			l.logger.Warn("the event log's files could not be opened again", "error", err)
			return
		}
		l.requestResync()
	}
	before := l.expired.Load()
	l.expireOnce()
	if err := l.threads.Expire(l.ctx); err != nil {
		l.logger.Warn("expired threads could not be deleted from the event log", "error", err)
	}
	if e.makeReserve() != nil {
		l.relieve(full, before)
		return
	}
	if err := e.reopenStore(0); err != nil {
		l.logger.Warn("the event log's files could not be opened again", "error", err)
		return
	}
	if e.diskFull { // when the log was opened, so nothing has been repaired yet
		if err := l.repairRuns(l.ctx); err != nil {
			l.logger.Warn("the runs of the event log could not be repaired", "error", err)
			return
		}
		e.diskFull = false
	}
	l.diskFull.Store(false)
	l.logger.Info("event log disk writable again")
	l.requestResync()
}

// reopenStore closes the server's store and opens it again with a compaction interval; 0 means the
// server's default. Client connections to the server stay open.
func (e *embedded) reopenStore(compact time.Duration) error {
	if err := e.server.ShutdownJetStream(); err != nil {
		return fmt.Errorf("close the embedded event log: %w", err)
	}
	e.options.SyncInterval = compact // no stream reads it while the store is closed
	err := e.server.EnableJetStream(&server.JetStreamConfig{
		StoreDir: e.dir, MaxMemory: e.options.JetStreamMaxMemory, MaxStore: e.options.JetStreamMaxStore, SyncInterval: compact, Strict: true,
	})
	if err != nil {
		return fmt.Errorf("open the embedded event log: %w", err)
	}
	return nil
}
