package jetstream

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/help"
)

const (
	// embeddedTimeout bounds how long an embedded server may take to read its files.
	embeddedTimeout = time.Minute
	// embeddedPayload bounds a message of the embedded server, in bytes. Few payloads are
	// larger; those are split into parts.
	embeddedPayload = 1 << 20
	// maxStore is the server's own limit, in bytes. It far exceeds the limits of the streams, so
	// that it never rejects a stream whose limit changes while the others keep theirs.
	maxStore = 1 << 50
)

// embedded runs a NATS server inside this process. The server does not listen on a port.
type embedded struct {
	server   *server.Server
	options  *server.Options
	dir      string
	lock     *os.File
	maxBytes int64 // of the log
	diskFull bool  // the server was started on a full disk, and repairRuns is still to be called
}

// startEmbedded starts a server with its files in dir. Two processes would destroy each
// other's files, so the second one gets an error. maxBytes bounds the log; 0 means byDefault, or what
// the disk has. It returns a *DiskError if the disk is too small.
func startEmbedded(dir string, maxBytes, byDefault int64, logger *slog.Logger) (*embedded, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the event log's directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("lock the event log's directory: %w", err)
	}
	if maxBytes, err = fitDisk(dir, maxBytes, byDefault, logger); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	// Without these options the server would handle signals, write logs, listen, and use
	// three quarters of the machine's memory.
	e := &embedded{dir: dir, lock: lock, maxBytes: maxBytes, options: &server.Options{
		ServerName: "answerd", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, JetStreamMaxMemory: 16 << 20, JetStreamMaxStore: maxStore,
		MaxPayload: embeddedPayload, MaxPending: 64 << 20, NoSystemAccount: false,
	}}
	if e.diskFull = !e.prepareDisk(); e.diskFull {
		logger.Error("event log disk full, refusing new runs", help.EventLogSpace.Attr())
	}
	e.server, err = server.NewServer(e.options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the embedded event log: %w", err), lock.Close())
	}
	e.server.SetLoggerV2(serverLog{logger}, false, false, false)
	e.server.Start()
	if !e.server.ReadyForConnections(embeddedTimeout) {
		return nil, errors.Join(errors.New("start the embedded event log: it did not get ready in time"), e.close())
	}
	return e, nil
}

// close shuts the server down and returns when everything is on disk.
func (e *embedded) close() error {
	e.server.Shutdown()
	e.server.WaitForShutdown()
	return e.lock.Close()
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
