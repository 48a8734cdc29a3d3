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
// Deleting needs disk space too: the server records each deletion, and compacts a file by writing it again. So Start
// writes a reserve file, unless the disk is full. When a write has failed, the caller removes the reserve
// (ReleaseReserve), deletes messages with the space that this frees, and writes the reserve again (MakeReserve).
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
	// maxStore limits all streams of the server together, in bytes. It far exceeds the sum of their own limits, so that
	// the server never refuses a stream whose limit is raised before another one's is lowered.
	maxStore = 1 << 50
	// compactInterval makes the server compact its files every second while the disk is full.
	// The server's default of two minutes would delay the recovery.
	compactInterval = time.Second
)

// Options configures Start. Dir and Logger are required.
type Options struct {
	Dir      string   // the directory of the server's files; Start makes it if it is missing
	MaxBytes int64    // the limit of the log, in bytes; 0 means Default, or the space on the disk if that is less
	Default  int64    // used if MaxBytes is 0
	Streams  []string // the streams whose stored messages must fit the limit that Start chooses if MaxBytes is 0
	Logger   *slog.Logger
}

// Server is a NATS server in this process.
type Server struct {
	MaxBytes int64 // the limit of the log, from Options or chosen by Start
	DiskFull bool  // the disk was full when Start was called: there is no reserve

	server  *server.Server
	options *server.Options
	reserve reserve
	lock    *fileLock // held until Close
}

// Start starts a server and waits until it accepts connections, up to startTimeout. It returns a *DiskError if the disk
// is too small for Options.MaxBytes, and an error if another process uses Dir: two servers would destroy each other's
// files.
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
		MaxPayload: MaxPayload, MaxPending: 64 << 20,
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

// MakeReserve writes the reserve. It returns an error, and leaves no reserve, if the disk would then have too little
// space for the log to accept events again.
func (s *Server) MakeReserve() error { return s.reserve.make() }

// ReleaseReserve removes the reserve. It reports whether there was one.
func (s *Server) ReleaseReserve() bool { return s.reserve.release() }

// CanOpen reports whether the disk has space for Reopen.
func (s *Server) CanOpen() bool { return s.reserve.hasFree(minFreeToOpen) }

// healthTries bounds how often Health asks the server.
const healthTries = 10

// Health asks the server for its health and returns the first error that the server reports, or nil. The server first
// checks for one millisecond whether it accepts connections (nats-server 2.15, Server.Healthz). That check fails if the
// server does not get the processor in that millisecond, so Health asks again, up to healthTries times. An error of a
// stream is returned at once.
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

// Reopen closes the server's store and opens it again. After a failed write, the server accepts no write until then. If
// compactOften is set, the server compacts its files every compactInterval from then on, otherwise at its default.
// Client connections to the server stay open.
func (s *Server) Reopen(compactOften bool) error {
	syncInterval := time.Duration(0) // the server's default
	if compactOften {
		syncInterval = compactInterval // the server compacts whenever it syncs
	}
	if err := s.server.ShutdownJetStream(); err != nil {
		return fmt.Errorf("close the embedded event log: %w", err)
	}
	s.options.SyncInterval = syncInterval // no data race: streams read it only while the store is open
	err := s.server.EnableJetStream(&server.JetStreamConfig{
		StoreDir: s.reserve.dir, MaxMemory: s.options.JetStreamMaxMemory, MaxStore: s.options.JetStreamMaxStore,
		SyncInterval: syncInterval, Strict: true,
	})
	if err != nil {
		return fmt.Errorf("open the embedded event log: %w", err)
	}
	return nil
}

// serverLog implements server.Logger. It forwards warnings and errors to the logger, and drops the rest.
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
