package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"answerd/internal/auth"
)

// watchInterval is how often the files are looked at. A look is a stat of each; being
// told by the kernel would be another way on every system, and fail on network and
// overlay file systems.
const watchInterval = 2 * time.Second

// fileWatch notices when files change: what they hold, or whether they are there.
type fileWatch struct {
	paths []string
	seen  []os.FileInfo // nil for a file that cannot be seen
}

// newFileWatch is a watch of the files as they are now; empty paths are none.
func newFileWatch(paths ...string) *fileWatch {
	w := &fileWatch{}
	for _, p := range paths {
		if p != "" {
			w.paths, w.seen = append(w.paths, p), append(w.seen, nil)
		}
	}
	w.hasChanged()
	return w
}

// hasChanged reports whether a file is another than at the last look. A new one that
// was moved to its place differs, even if time and size are the same.
func (w *fileWatch) hasChanged() bool {
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

// startFollowing begins to follow files, by read, and returns what ends it. SIGHUP ends no
// answerd from here on.
func startFollowing(ctx context.Context, files *fileWatch, what string, logger *slog.Logger, read func() (slog.Attr, error)) (end func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		followFiles(ctx, files, hangup, what, logger, read)
	}()
	return func() {
		signal.Stop(hangup)
		cancel()
		<-ended
	}
}

// followFiles has a configuration read again when one of its files changes, and at each
// hangup, until ctx ends. One that is no good is refused by read, and the one in use stays
// (F36).
func followFiles(ctx context.Context, files *fileWatch, hangup <-chan os.Signal, what string, logger *slog.Logger, read func() (slog.Attr, error)) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		why := "the file has changed"
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			why = "SIGHUP"
			files.hasChanged() // it is read now
		case <-tick.C:
			if !files.hasChanged() {
				continue
			}
		}
		size, err := readRecovered(read)
		if err != nil {
			logger.Error(what+" refused; the one in use stays", "cause", why, "error", err)
			continue
		}
		logger.Info(what+" read again", "cause", why, size)
	}
}

// readRecovered is read with a panic made its error: whatever is in a file, the service goes
// on with what it has.
func readRecovered(read func() (slog.Attr, error)) (size slog.Attr, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return read()
}

// startReloading reads the configuration of the MCP servers again when its file or that of the
// accepted definitions changes, until end is called. It is there without a file too, so
// that SIGHUP ends no answerd.
func (t *toolset) startReloading(ctx context.Context, c config, logger *slog.Logger) (end func()) {
	return startFollowing(ctx, t.files, "MCP configuration", logger, func() (slog.Attr, error) {
		servers, err := mcpServers(c)
		if err == nil {
			err = t.client.Reload(servers)
		}
		if err != nil {
			return slog.Attr{}, err
		}
		warnAboutCallers(c, servers, logger)
		return slog.Int("servers", len(servers)), nil
	})
}

// newRules reads AUTH_RULES_FILE; nil where there is none. end is to be called in the end:
// until then the file is read again when it changes, and one that is no good is refused.
func newRules(ctx context.Context, c config, logger *slog.Logger) (rules *auth.Rules, end func(), err error) {
	if c.AuthRulesFile == "" {
		return nil, func() {}, nil
	}
	file := newFileWatch(c.AuthRulesFile) // before it is read
	first, err := readRules(c)
	if err != nil {
		return nil, nil, err
	}
	rules = auth.NewRules(first)
	return rules, startFollowing(ctx, file, "access rules", logger, func() (slog.Attr, error) {
		again, err := readRules(c)
		if err != nil {
			return slog.Attr{}, err
		}
		rules.Replace(again)
		return slog.Int("rules", len(again)), nil
	}), nil
}

func readRules(c config) ([]auth.Rule, error) {
	if c.AuthRulesFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(c.AuthRulesFile)
	if err != nil {
		return nil, &configError{"AUTH_RULES_FILE", "cannot be read: " + fileReason(err)}
	}
	rules, err := auth.ParseRules(data)
	if err != nil {
		return nil, &configError{"AUTH_RULES_FILE", err.Error()}
	}
	return rules, nil
}
