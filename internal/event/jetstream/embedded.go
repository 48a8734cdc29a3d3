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

const (
	// embeddedTimeout bounds how long an embedded server may take to read its files.
	embeddedTimeout = time.Minute
	// embeddedPayload bounds a message of the embedded server, in bytes. Few payloads are
	// larger; those are split into parts.
	embeddedPayload = 1 << 20
	// diskCheckInterval is the time between two attempts to recover a disk that was full,
	// and diskRoom the bytes that must be free on it then.
	diskCheckInterval = time.Second
	diskRoom          = 4 << 20
)

// embedded is a NATS server inside this process that does not listen.
type embedded struct {
	server  *server.Server
	options *server.Options
	lock    *os.File
}

// startEmbedded starts a server with its files in dir. Two processes would destroy each
// other's files, so the second one gets an error.
func startEmbedded(dir string, maxBytes int64, logger *slog.Logger) (*embedded, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the event log's directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("lock the event log's directory: %w", err)
	}
	// Without these options the server would handle signals, write logs, listen, and use
	// three quarters of the machine's memory.
	e := &embedded{lock: lock, options: &server.Options{
		ServerName: "answerd", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, JetStreamMaxMemory: 16 << 20, JetStreamMaxStore: maxStoreBytes(maxBytes),
		MaxPayload: embeddedPayload, MaxPending: 64 << 20, NoSystemAccount: false,
	}}
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

// close returns when everything is on disk.
func (e *embedded) close() error {
	e.server.Shutdown()
	e.server.WaitForShutdown()
	return e.lock.Close()
}

// diskFailed reports whether the disk of an embedded log takes no writes, in which case no
// append succeeds before recoverDisk. The server does not answer an append that it could not
// write, so it is asked for its health after an append that failed.
func (l *Log) diskFailed() bool {
	if l.embedded == nil {
		return false
	}
	if l.diskFull.Load() {
		return true
	}
	health := l.embedded.server.Healthz(&server.HealthzOptions{})
	if health.Status == "ok" || l.ctx.Err() != nil {
		return false
	}
	if !l.diskFull.Swap(true) {
		l.logger.Error("event log disk not writable, refusing new runs", "error", health.Error)
	}
	return true
}

// recoverDiskLoop calls recoverDisk while the disk of the embedded log is full.
func (l *Log) recoverDiskLoop() {
	tick := time.NewTicker(diskCheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if l.diskFull.Load() {
				l.recoverDisk()
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// recoverDisk opens the files of the embedded log again once the disk has space: the server
// takes no writes after one has failed, until its store is opened anew. Acknowledged events
// are on the disk, and jobs are delivered again when their leases end.
func (l *Log) recoverDisk() {
	defer l.recoverPanic("open the event log's files again")
	if !l.embedded.hasDiskSpace() {
		return
	}
	if err := l.embedded.restart(); err != nil {
		l.logger.Warn("the event log's files could not be opened again", "error", err)
		return
	}
	l.diskFull.Store(false)
	l.logger.Info("event log disk writable again")
	l.requestResync()
}

// hasDiskSpace writes and removes a file of diskRoom bytes.
func (e *embedded) hasDiskSpace() bool {
	f, err := os.CreateTemp(e.options.StoreDir, "room-")
	if err != nil {
		return false
	}
	defer os.Remove(f.Name())
	_, err = f.Write(make([]byte, diskRoom))
	return errors.Join(err, f.Close()) == nil
}

// restart closes the store of the server and opens it again. Connections to the server stay.
func (e *embedded) restart() error {
	if err := e.server.ShutdownJetStream(); err != nil {
		return fmt.Errorf("close the embedded event log: %w", err)
	}
	err := e.server.EnableJetStream(&server.JetStreamConfig{
		StoreDir: e.options.StoreDir, MaxMemory: e.options.JetStreamMaxMemory, MaxStore: e.options.JetStreamMaxStore, Strict: true,
	})
	if err != nil {
		return fmt.Errorf("open the embedded event log: %w", err)
	}
	return nil
}

// serverLog logs the warnings and errors of the server.
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
