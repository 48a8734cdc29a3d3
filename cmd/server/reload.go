package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// watchEvery is how often the files are looked at. A look is a stat of each; being
// told by the kernel would be another way on every system, and fail on network and
// overlay file systems.
const watchEvery = 2 * time.Second

// watch notices when files change: what they hold, or whether they are there.
type watch struct {
	paths []string
	seen  []os.FileInfo // nil for a file that cannot be seen
}

// newWatch is a watch of the files as they are now; empty paths are none.
func newWatch(paths ...string) *watch {
	w := &watch{}
	for _, p := range paths {
		if p != "" {
			w.paths, w.seen = append(w.paths, p), append(w.seen, nil)
		}
	}
	w.changed()
	return w
}

// changed reports whether a file is another than at the last look. A new one that
// was moved to its place differs, even if time and size are the same.
func (w *watch) changed() bool {
	changed := false
	for i, p := range w.paths {
		now, err := os.Stat(p)
		if err != nil {
			now = nil
		}
		changed = changed || !sameFile(now, w.seen[i])
		w.seen[i] = now
	}
	return changed
}

func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// followed starts follow and returns what ends it. SIGHUP ends no answerd from here
// on, also where there is no file to read.
func (t *toolset) followed(ctx context.Context, c config, logger *slog.Logger) (end func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.follow(ctx, c, hangup, logger)
	}()
	return func() {
		signal.Stop(hangup)
		cancel()
		<-ended
	}
}

// follow reads the configuration of the MCP servers again when its file or that of
// the accepted definitions changes, and at each hangup, until ctx ends. A
// configuration that is no good is refused, and the one in use stays (F36).
func (t *toolset) follow(ctx context.Context, c config, hangup <-chan os.Signal, logger *slog.Logger) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		why := "the file has changed"
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			why = "SIGHUP"
			t.files.changed() // it is read now
		case <-tick.C:
			if !t.files.changed() {
				continue
			}
		}
		servers, err := mcpServers(c)
		if err == nil {
			err = t.client.Reload(servers)
		}
		if err != nil {
			logger.Error("MCP configuration refused; the one in use stays", "cause", why, "error", err)
			continue
		}
		warnOfNobody(c, servers, logger)
		logger.Info("MCP configuration read again", "cause", why, "servers", len(servers))
	}
}
