// Package embedded runs a NATS server inside this process, for an event log on this process's disk. The server does not
// listen on a port.
//
//	s, err := embedded.Start(embedded.Options{Dir: "/var/lib/answerd", Default: 1 << 30, Logger: logger})
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	c, err := nats.Connect("", nats.InProcessServer(s))
//
// Deleting also needs disk space: the server records each deletion, and compacts a file by rewriting it. So Start
// writes a reserve file, unless the disk is full. When a write fails, the caller removes the reserve (ReleaseReserve),
// uses the freed space to delete messages, and writes the reserve again (MakeReserve).
package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/help"
)

const (
	// startTimeout is how long a server may take to read its files.
	startTimeout = time.Minute
	// MaxPayload is the largest size of a message, in bytes.
	MaxPayload = 1 << 20
	// maxStore limits the total size of all streams of the server, in bytes. It far exceeds the sum of their limits, so
	// that the server never refuses to raise the limit of one stream before the limit of another is lowered.
	maxStore = 1 << 50
)

// CompactInterval is how often the server compacts its files. It compacts them whenever it syncs them.
type CompactInterval time.Duration

const (
	// DefaultCompactInterval is the server's default of two minutes.
	DefaultCompactInterval CompactInterval = 0
	// ShortCompactInterval is for the recovery from a full disk, which the default would delay.
	ShortCompactInterval = CompactInterval(time.Second)
)

// Options configures Start. Dir and Logger are required.
type Options struct {
	Dir      string   // the directory for the server's files; Start creates it if necessary
	MaxBytes int64    // the log's size limit, in bytes; 0 means Default, or the space on the disk if that is less
	Default  int64    // used if MaxBytes is 0
	Streams  []string // streams whose stored messages must fit the limit that Start chooses if MaxBytes is 0
	Logger   *slog.Logger
}

// Server is a NATS server in this process.
type Server struct {
	MaxBytes int64 // the log's size limit, from Options or chosen by Start
	DiskFull bool  // the disk was full when Start was called, so the reserve does not exist

	server  *server.Server
	options *server.Options
	reserve reserve
	lock    *fileLock // held until Close
}

// Start starts a server and waits up to startTimeout until it accepts connections. It returns a *DiskError if the disk
// is too small for Options.MaxBytes. It returns an error if another process uses Dir, because two servers would destroy
// each other's files.
func Start(opts Options) (*Server, error) {
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the event log's directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(opts.Dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("lock the event log's directory: %w", err)
	}
	maxBytes, err := fitDisk(opts.Dir, opts.MaxBytes, opts.Default, opts.Streams, opts.Logger)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	// Without these options, the server would handle signals, write its own log, listen on a port, and use three
	// quarters of the machine's memory.
	s := &Server{reserve: reserve{opts.Dir}, lock: lock, MaxBytes: maxBytes, options: &server.Options{
		ServerName:         "answerd",
		DontListen:         true,
		NoSigs:             true,
		NoLog:              true,
		JetStream:          true,
		StoreDir:           opts.Dir,
		JetStreamMaxMemory: 16 << 20,
		JetStreamMaxStore:  maxStore,
		MaxPayload:         MaxPayload,
		MaxPending:         64 << 20,
	}}
	s.DiskFull = !s.reserve.prepare()
	if s.DiskFull {
		opts.Logger.Error("event log disk full, refusing new runs", help.EventLogSpace.Attr())
	}
	s.server, err = server.NewServer(s.options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the embedded event log: %w", err), lock.Close())
	}
	s.server.SetLoggerV2(serverLog{opts.Logger}, false, false, false)
	s.server.Start()
	if !s.server.ReadyForConnections(startTimeout) {
		return nil, errors.Join(errors.New("start the embedded event log: it did not get ready in time"), s.Close())
	}
	return s, nil
}

// InProcessConn implements nats.InProcessConnProvider.
func (s *Server) InProcessConn() (net.Conn, error) { return s.server.InProcessConn() }

// Close shuts the server down, and returns when everything is on disk.
func (s *Server) Close() error {
	s.server.Shutdown()
	s.server.WaitForShutdown()
	return s.lock.Close()
}

// MakeReserve writes the reserve. If the disk would then have too little space for the log to accept events again, it
// returns an error and leaves no reserve.
func (s *Server) MakeReserve() error { return s.reserve.make() }

// ReleaseReserve removes the reserve. It returns false if no reserve was removed.
func (s *Server) ReleaseReserve() bool { return s.reserve.release() }

// CanOpen reports whether the disk has enough space for Reopen.
func (s *Server) CanOpen() bool { return s.reserve.hasFree(minFreeToOpen) }

// healthTries is how often Health asks the server.
const healthTries = 10

// Health checks the server's health. It returns the first error that the server reports, or nil. As part of that check,
// the server tests for one millisecond whether it accepts connections (nats-server 2.15, Server.Healthz). This test
// fails if the server does not get CPU time in that millisecond, so Health repeats the check up to healthTries times.
// It returns an error of a stream at once.
func (s *Server) Health() (err error) {
	for range healthTries {
		health := s.server.Healthz(&server.HealthzOptions{Details: true})
		if len(health.Errors) == 0 {
			return nil
		}
		err = errors.New(health.Errors[0].Error)
		if health.Errors[0].Type != server.HealthzErrorConn {
			break
		}
	}
	return err
}

// Reopen closes the server's store and opens it again. After a failed write, the server accepts no writes until the
// store was reopened. From then on, the server compacts its files at the given interval. Client connections to the
// server stay open.
func (s *Server) Reopen(interval CompactInterval) error {
	if err := s.server.ShutdownJetStream(); err != nil {
		return fmt.Errorf("close the embedded event log: %w", err)
	}
	s.options.SyncInterval = time.Duration(interval) // no data race: streams read it only while the store is open
	err := s.server.EnableJetStream(&server.JetStreamConfig{
		StoreDir:     s.reserve.dir,
		MaxMemory:    s.options.JetStreamMaxMemory,
		MaxStore:     s.options.JetStreamMaxStore,
		SyncInterval: s.options.SyncInterval,
		Strict:       true,
	})
	if err != nil {
		return fmt.Errorf("open the embedded event log: %w", err)
	}
	return nil
}

// serverLog implements server.Logger. It forwards warnings and errors to logger and drops the rest.
type serverLog struct{ logger *slog.Logger }

func (s serverLog) Errorf(format string, v ...any) {
	s.logger.Error("embedded event log", "error", fmt.Sprintf(format, v...))
}

func (s serverLog) Fatalf(format string, v ...any) { s.Errorf(format, v...) }

func (s serverLog) Warnf(format string, v ...any) {
	s.logger.Warn("embedded event log", "warning", fmt.Sprintf(format, v...))
}

func (serverLog) Noticef(string, ...any) {}
func (serverLog) Debugf(string, ...any)  {}
func (serverLog) Tracef(string, ...any)  {}
