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
	"sync"
	"syscall"
	"time"

	"answerd/internal/auth"
)

// watchInterval is the time between two checks of the watched files. A check is one stat call per file. Polling works
// everywhere, while the kernel's notifications differ between systems and do not work on network and overlay file
// systems.
const watchInterval = 2 * time.Second

// fileWatch detects that one of several files was changed, created or removed. It is not safe for concurrent use.
type fileWatch struct {
	paths []string      // without duplicates
	seen  []os.FileInfo // state of each path at its last check; nil if stat failed
}

// newFileWatch returns a watch that compares with the current state of the files. Create it before you read the files,
// so that it notices a change in between. It ignores empty paths.
func newFileWatch(paths ...string) *fileWatch {
	w := &fileWatch{}
	w.setPaths(paths...)
	return w
}

// setPaths replaces the set of watched files. A file that stays in the set keeps its last state, so that a change since
// the last check is still noticed. setPaths ignores empty paths.
func (w *fileWatch) setPaths(paths ...string) {
	lastStates := make(map[string]os.FileInfo, len(w.paths)) // by path
	for i, path := range w.paths {
		lastStates[path] = w.seen[i]
	}
	w.paths, w.seen = nil, nil
	for _, path := range paths {
		if path == "" || slices.Contains(w.paths, path) {
			continue
		}
		state, wasWatched := lastStates[path]
		if !wasWatched {
			state = fileState(path)
		}
		w.paths = append(w.paths, path)
		w.seen = append(w.seen, state)
	}
}

// fileState returns the state of the file at path, or nil if stat fails.
func fileState(path string) os.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// hasChanged reports whether a file has changed since the last check, and records the current states for the next call.
func (w *fileWatch) hasChanged() bool {
	changed := false
	for i, path := range w.paths {
		state := fileState(path)
		if !sameFile(state, w.seen[i]) {
			changed = true
		}
		w.seen[i] = state
	}
	return changed
}

// sameFile reports whether a and b are states of the same unchanged file, or both nil. A different file that was moved
// to the path counts as a change even if its time and size are equal, because Kubernetes replaces mounted files in that
// way.
func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// startFollowing runs followFiles in a goroutine until ctx ends or end is called; end waits for the goroutine. SIGHUP
// does not end the process until end is called.
//
// Only that goroutine uses files and calls read, so read may set other paths without a lock. Each configuration has its
// own goroutine, and every goroutine gets every SIGHUP. what names the configuration in the log.
func startFollowing(ctx context.Context, files *fileWatch, what string, logger *slog.Logger, read func() (slog.Attr, error)) (end func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { followFiles(ctx, files, hangup, what, logger, read) })
	return func() {
		signal.Stop(hangup)
		cancel()
		following.Wait()
	}
}

// retryInterval is how long followFiles waits before it reads a refused configuration again although no file has
// changed.
const retryInterval = 5 * time.Second

// followFiles calls read to reload a configuration when one of its files changes, and at each hangup, until ctx ends.
// read returns an attribute for the log, such as the number of rules. If read returns an error, the configuration was
// refused and the current one stays in use.
//
// followFiles reads a refused configuration again after retryInterval even without a change, because the cause may be
// outside of the watched files: a file that does not exist yet, or permissions. It logs a repeated refusal only if the
// reason is new.
func followFiles(ctx context.Context, files *fileWatch, hangup <-chan os.Signal, what string, logger *slog.Logger, read func() (slog.Attr, error)) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	refusal := "" // first line of the last error of read; "" after a success
	var readAt time.Time
	const retryCause = "it was refused before"
	for {
		cause := "" // why the configuration is read, for the log; "" if it need not be read
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			cause = "SIGHUP"
			files.hasChanged() // so that the next check does not report changes that are read now
		case <-tick.C:
			if files.hasChanged() {
				cause = "the file has changed"
			} else if refusal != "" && time.Since(readAt) >= retryInterval {
				cause = retryCause
			}
		}
		if cause == "" {
			continue
		}
		size, err := recoverPanic(read)
		readAt = time.Now()
		if err == nil {
			refusal = ""
			logger.Info(what+" read again", "cause", cause, size)
			continue
		}
		reason, _, _ := strings.Cut(err.Error(), "\n") // further lines may be the stack of a panic, which differs each time
		if cause != retryCause || reason != refusal {
			logger.Error(what+" refused; the one in use stays", "cause", cause, "error", err, "help", helpPage(err))
		}
		refusal = reason
	}
}

// recoverPanic calls read and turns a panic into an error with the stack. A file that makes a parser panic then does
// not end the service, which keeps its current configuration.
func recoverPanic(read func() (slog.Attr, error)) (size slog.Attr, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return read()
}

// newRules reads AUTH_RULES_FILE, and replaces the rules when the file changes, and at SIGHUP, until end is called. An
// invalid file leaves the rules as they are. Without AUTH_RULES_FILE rules is nil. Every error is a *configError.
func newRules(ctx context.Context, cfg config, logger *slog.Logger) (rules *auth.Rules, end func(), err error) {
	if cfg.AuthRulesFile == "" {
		return nil, func() {}, nil
	}
	file := newFileWatch(cfg.AuthRulesFile) // before the file is read, so that a change in between is noticed
	initial, err := readRules(cfg)
	if err != nil {
		return nil, nil, err
	}
	rules = auth.NewRules(initial)
	if cfg.AuthIssuer == "" { // The process of ask or chat: the person at its terminal may use everything.
		rules.ExemptAnonymous()
	}
	end = startFollowing(ctx, file, "access rules", logger, func() (slog.Attr, error) {
		changed, err := readRules(cfg)
		if err != nil {
			return slog.Attr{}, err
		}
		rules.Replace(changed)
		return slog.Int("rules", len(changed)), nil
	})
	return rules, end, nil
}

// readRules returns the rules in AUTH_RULES_FILE, or nil if that is not set. Every error is a *configError.
func readRules(c config) ([]auth.Rule, error) {
	if c.AuthRulesFile == "" {
		return nil, nil
	}
	return parseFile("AUTH_RULES_FILE", c.AuthRulesFile, auth.ParseRules)
}
