package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"answerd/internal/auth"
)

// watchInterval is the time between two checks of the files, each of which is one stat call.
// Polling works on all systems; notifications of the kernel differ between them and do not work on
// network and overlay file systems.
const watchInterval = 2 * time.Second

// fileWatch detects that a file was changed, created or removed. It is not safe for concurrent
// use.
type fileWatch struct {
	paths []string
	seen  []os.FileInfo // nil for a file that cannot be seen
}

// newFileWatch returns a watch that starts with the files as they are now. Create it before the
// files are read, so that a change in between is noticed. It ignores empty paths.
func newFileWatch(paths ...string) *fileWatch {
	w := &fileWatch{}
	w.setPaths(paths...)
	return w
}

// setPaths changes which files are watched. A file that was watched before keeps its last state,
// so that no change of it is missed.
func (w *fileWatch) setPaths(paths ...string) {
	known := make(map[string]os.FileInfo, len(w.paths))
	for i, p := range w.paths {
		known[p] = w.seen[i]
	}
	w.paths, w.seen = nil, nil
	for _, p := range paths {
		if p == "" || slices.Contains(w.paths, p) {
			continue
		}
		seen, watched := known[p]
		if !watched {
			seen = fileState(p)
		}
		w.paths, w.seen = append(w.paths, p), append(w.seen, seen)
	}
}

// fileState returns the state of a file that changes are compared by, or nil if it cannot be read.
func fileState(path string) os.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// hasChanged reports whether a file has changed since the last call. A file that was moved to the
// path of another counts as changed even if time and size are the same: Kubernetes replaces
// mounted files in that way.
func (w *fileWatch) hasChanged() bool {
	changed := false
	for i, p := range w.paths {
		now := fileState(p)
		changed = changed || !sameFile(now, w.seen[i])
		w.seen[i] = now
	}
	return changed
}

// sameFile reports whether two states are those of one unchanged file.
func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// startFollowing calls read whenever files change or SIGHUP arrives, until end is called; end
// waits for the goroutine. From the call on, SIGHUP does not end the process. read is called by that
// goroutine only, one call at a time, so it may use files without a lock; what it changes for others
// needs one. what names the files in the log. Each configuration has a goroutine of its own, and all of
// them get each SIGHUP.
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

// retryInterval is the least time until a configuration that was refused is read again although no file
// that is watched has changed.
const retryInterval = 5 * time.Second

// followFiles reloads a configuration when one of its files changes, and at each hangup, until
// ctx ends. read refuses an invalid configuration, and the current one stays in use. A file that was read
// while it was being written is usually refused; the end of the writing is another change, and the file
// is read again at the next check.
//
// A refused configuration is also read again without a change, because the reason may be elsewhere: in
// another file that was replaced at the same time and is read a moment later, such as the mcp.json with the
// servers of an agent; in a file that the configuration names and that does not exist yet; or in
// permissions. The log has the same refusal only once.
func followFiles(ctx context.Context, files *fileWatch, hangup <-chan os.Signal, what string, logger *slog.Logger, read func() (slog.Attr, error)) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	refused, readAt := "", time.Time{} // why the last reading was refused, in one line; "" after a success
	for {
		why, retried := "the file has changed", false
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			why = "SIGHUP"
			files.hasChanged() // the next check must not see changes that are read now
		case <-tick.C:
			if !files.hasChanged() {
				if refused == "" || time.Since(readAt) < retryInterval {
					continue
				}
				why, retried = "it was refused before", true
			}
		}
		size, err := readRecovered(read)
		readAt = time.Now()
		if err != nil {
			reason, _, _ := strings.Cut(err.Error(), "\n") // the lines after it may be the stack of a panic
			if !retried || reason != refused {
				logger.Error(what+" refused; the one in use stays", "cause", why, "error", err, "help", helpPage(err))
			}
			refused = reason
			continue
		}
		refused = ""
		logger.Info(what+" read again", "cause", why, size)
	}
}

// readRecovered calls read and returns a panic as an error. Whatever a file contains, the service
// continues with its current configuration.
func readRecovered(read func() (slog.Attr, error)) (size slog.Attr, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return read()
}

// newRules reads AUTH_RULES_FILE; rules are nil if it is not set. Until end is called, the file
// is reloaded when it changes, and an invalid one is refused.
func newRules(ctx context.Context, cfg config, logger *slog.Logger) (rules *auth.Rules, end func(), err error) {
	if cfg.AuthRulesFile == "" {
		return nil, func() {}, nil
	}
	file := newFileWatch(cfg.AuthRulesFile) // before it is read
	first, err := readRules(cfg)
	if err != nil {
		return nil, nil, err
	}
	rules = auth.NewRules(first)
	return rules, startFollowing(ctx, file, "access rules", logger, func() (slog.Attr, error) {
		again, err := readRules(cfg)
		if err != nil {
			return slog.Attr{}, err
		}
		rules.Replace(again)
		return slog.Int("rules", len(again)), nil
	}), nil
}

// readRules reads AUTH_RULES_FILE; the rules are nil if it is not set.
func readRules(c config) ([]auth.Rule, error) {
	if c.AuthRulesFile == "" {
		return nil, nil
	}
	return parseFile("AUTH_RULES_FILE", c.AuthRulesFile, auth.ParseRules)
}
