// Package embedded runs a NATS server inside this process, for an event log on the disk of this process. It does
// not listen on a port.
//
//	s, err := embedded.Start(embedded.Options{Dir: "/var/lib/answerd", Default: 1 << 30, Logger: logger})
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	c, err := nats.Connect("", nats.InProcessServer(s))
//
// Deleting needs disk space too: the server records each deletion, and compacts a file by writing it again. So the
// package keeps a reserve file. Its caller removes it when a write has failed (ReleaseReserve), deletes with that
// space, and writes it again (MakeReserve). Start makes it, unless the disk is full.
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
	// startTimeout bounds how long a server may take to read its files.
	startTimeout = time.Minute
	// MaxPayload bounds a message of the server, in bytes.
	MaxPayload = 1 << 20
	// maxStore is the server's own limit, in bytes. It far exceeds the limits of the streams, so
	// that it never rejects a stream whose limit changes while the others keep theirs.
	maxStore = 1 << 50
	// compactInterval makes the server compact its files every second while the disk is full.
	// The server's default of two minutes would delay the recovery.
	compactInterval = time.Second
)

// Options configures Start. Dir and Logger are required.
type Options struct {
	Dir      string   // of the server's files
	MaxBytes int64    // bounds the log; 0 means Default, or what the disk has
	Default  int64    // of MaxBytes
	Streams  []string // the names of the streams that count as the log
	Logger   *slog.Logger
}

// Server is a NATS server in this process.
type Server struct {
	MaxBytes int64 // of the log
	DiskFull bool  // the server was started on a full disk

	server  *server.Server
	options *server.Options
	reserve reserve
	lock    *fileLock
}

// Start starts a server. Two processes would destroy each other's files, so the second one gets an error. It
// returns a *DiskError if the disk is too small.
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
	// Without these options the server would handle signals, write logs, listen, and use
	// three quarters of the machine's memory.
	s := &Server{reserve: reserve{opts.Dir}, lock: lock, MaxBytes: maxBytes, options: &server.Options{
		ServerName: "answerd", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: opts.Dir, JetStreamMaxMemory: 16 << 20, JetStreamMaxStore: maxStore,
		MaxPayload: MaxPayload, MaxPending: 64 << 20, NoSystemAccount: false,
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

// Close shuts the server down and returns when everything is on disk.
func (s *Server) Close() error {
	s.server.Shutdown()
	s.server.WaitForShutdown()
	return s.lock.Close()
}

// MakeReserve writes the reserve, if that leaves space for the log to accept events again.
func (s *Server) MakeReserve() error { return s.reserve.make() }

// ReleaseReserve removes the reserve. It reports whether there was one.
func (s *Server) ReleaseReserve() bool { return s.reserve.release() }

// CanOpen reports whether the disk has space to open the store again.
func (s *Server) CanOpen() bool { return s.reserve.hasFree(openRoom) }

// healthTries bounds how often Health asks the server.
const healthTries = 10

// Health returns the error that the server reports for its own health, or nil. Before its streams, the server checks for
// a millisecond whether it accepts connections (nats-server 2.15, Server.Healthz). That check fails if the server does not
// run in that millisecond, so Health repeats it. It does not repeat the errors of streams.
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
		StoreDir: s.reserve.dir, MaxMemory: s.options.JetStreamMaxMemory, MaxStore: s.options.JetStreamMaxStore, SyncInterval: compact, Strict: true,
	})
	if err != nil {
		return fmt.Errorf("open the embedded event log: %w", err)
	}
	return nil
}

// serverLog forwards the warnings and errors of the server to the logger.
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
