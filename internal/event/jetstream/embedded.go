package jetstream

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startTimeout bounds how long an embedded server may take to read what it has kept.
const startTimeout = time.Minute

// embedded is a NATS server inside this process that listens nowhere.
type embedded struct {
	server  *server.Server
	options *server.Options
	lock    *os.File
}

// startEmbedded starts a server that keeps its files in dir. Two processes on one
// directory would destroy it, so the second one is refused.
func startEmbedded(dir string, maxBytes int64, logger *slog.Logger) (*embedded, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the event log's directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("lock the event log's directory: %w", err)
	}
	// The server takes signals, logs, ports and three quarters of the machine unless
	// it is told not to.
	e := &embedded{lock: lock, options: &server.Options{
		ServerName: "answerd", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, JetStreamMaxMemory: 16 << 20, JetStreamMaxStore: storeBytes(maxBytes),
		MaxPayload: embeddedPayload, MaxPending: 64 << 20, NoSystemAccount: false,
	}}
	e.server, err = server.NewServer(e.options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the embedded event log: %w", err), lock.Close())
	}
	e.server.SetLoggerV2(serverLog{logger}, false, false, false)
	e.server.Start()
	if !e.server.ReadyForConnections(startTimeout) {
		return nil, errors.Join(errors.New("start the embedded event log: it took too long"), e.close())
	}
	return e, nil
}

// embeddedPayload bounds a message of the embedded server, in bytes: an event seldom
// needs more, and one that does is cut into parts.
const embeddedPayload = 1 << 20

// close waits until everything is on disk.
func (e *embedded) close() error {
	e.server.Shutdown()
	e.server.WaitForShutdown()
	return e.lock.Close()
}

// serverLog passes on what goes wrong inside the server.
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
