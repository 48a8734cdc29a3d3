package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/event"
)

const (
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

// DiskError reports that the file system of a log has too little space for the size of the log.
type DiskError struct {
	Need int64 // bytes for the log, its index and its reserve
	Have int64 // bytes that are free or belong to the log already
}

func (e *DiskError) Error() string {
	return fmt.Sprintf("the log needs %d MiB on its file system, which has %d MiB for it", e.Need>>20, e.Have>>20)
}

// fitDisk returns the size limit of a log. A given MaxBytes is returned as it is, or a
// *DiskError if the file system is too small for it. If MaxBytes is 0, fitDisk chooses Default or
// the space available, whichever is less, but at least what the log has stored: a stream drops
// messages that exceed its limit.
func (o *Options) fitDisk() (int64, error) {
	free, err := freeBytes(o.Dir)
	if err != nil {
		return 0, err
	}
	have := free + bytesIn(o.Dir)
	bound := (have - reserveBytes) / 5 * 4
	switch {
	case o.MaxBytes > bound:
		return 0, &DiskError{Need: o.MaxBytes/4*5 + reserveBytes, Have: have}
	case o.MaxBytes > 0:
		return o.MaxBytes, nil
	}
	stored := int64(0)
	for _, stream := range o.Streams {
		stored += bytesIn(filepath.Join(o.Dir, "jetstream", server.DEFAULT_GLOBAL_ACCOUNT, "streams", stream, "msgs"))
	}
	if bound < o.Default {
		bound = max(bound, stored, minMaxBytes)
		o.Logger.Warn("the bound of the event log is smaller than its default, because its file system has no more space", "max_bytes", bound, "default", o.Default)
		return bound, nil
	}
	return max(o.Default, min(stored, event.DefaultMaxBytes)), nil
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
func (s *Server) reservePath() string { return filepath.Join(s.dir, reserveName) }

// prepareDisk makes the reserve if there is space for it, before the store is opened. It
// reports false on a full disk, whose reserve it releases.
func (s *Server) prepareDisk() bool {
	if info, err := os.Stat(s.reservePath()); err == nil && info.Size() == reserveBytes && s.hasFree(diskRoom) {
		return true
	}
	s.ReleaseReserve() // it may be incomplete
	return s.MakeReserve() == nil
}

// MakeReserve writes the reserve, if that leaves diskRoom free. The bytes are random, because
// some file systems compress.
func (s *Server) MakeReserve() error {
	if !s.hasFree(reserveBytes + diskRoom) {
		return errors.New("the disk has no space for the reserve of the event log")
	}
	data := make([]byte, reserveBytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // never fails
	if err := os.WriteFile(s.reservePath(), data, 0o600); err != nil {
		s.ReleaseReserve()
		return fmt.Errorf("write the reserve of the event log: %w", err)
	}
	return nil
}

// ReleaseReserve removes the reserve. It reports whether there was one.
func (s *Server) ReleaseReserve() bool { return os.Remove(s.reservePath()) == nil }

// hasFree reports whether n bytes are free on the disk.
func (s *Server) hasFree(n int64) bool {
	free, err := freeBytes(s.dir)
	return err == nil && free >= n
}

// CanOpen reports whether the disk has space to open the store again.
func (s *Server) CanOpen() bool { return s.hasFree(openRoom) }

// Health returns the error that the server reports for its own health, or nil.
func (s *Server) Health() error {
	if health := s.server.Healthz(&server.HealthzOptions{}); health.Status != "ok" {
		return errors.New(health.Error)
	}
	return nil
}

// Reopen closes the server's store and opens it again. compacts makes the server compact its files every second
// from then on. Client connections to the server stay open.
func (s *Server) Reopen(compacts bool) error {
	compact := time.Duration(0) // the server's default
	if compacts {
		compact = compactInterval
	}
	if err := s.server.ShutdownJetStream(); err != nil {
		return fmt.Errorf("close the embedded event log: %w", err)
	}
	s.options.SyncInterval = compact // no stream reads it while the store is closed
	err := s.server.EnableJetStream(&server.JetStreamConfig{
		StoreDir: s.dir, MaxMemory: s.options.JetStreamMaxMemory, MaxStore: s.options.JetStreamMaxStore, SyncInterval: compact, Strict: true,
	})
	if err != nil {
		return fmt.Errorf("open the embedded event log: %w", err)
	}
	return nil
}
