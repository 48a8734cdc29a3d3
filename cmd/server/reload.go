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

// watchInterval is the time between two checks of the files; a check is one stat call per file. Polling works on all
// systems. Notifications of the kernel differ between systems, and do not work on network and overlay file systems.
const watchInterval = 2 * time.Second

// fileWatch detects that one of several files was changed, created or removed. It is not safe for concurrent use.
type fileWatch struct {
	paths []string      // without duplicates
	seen  []os.FileInfo // state of each path at its last check; nil if there was no such file, or no permission
}

// newFileWatch returns a watch that compares with the files as they are now. Create it before the files are read, so
// that a change in between is noticed. It ignores empty paths.
func newFileWatch(paths ...string) *fileWatch {
	w := &fileWatch{}
	w.setPaths(paths...)
	return w
}

// setPaths sets which files are watched. For a file that was watched before, a change since the last check is still
// noticed. setPaths ignores empty paths.
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
		state, watched := known[p]
		if !watched {
			state = fileState(p)
		}
		w.paths = append(w.paths, p)
		w.seen = append(w.seen, state)
	}
}

// fileState returns the state of the file at path for sameFile, or nil if stat fails.
func fileState(path string) os.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// hasChanged checks all files, and reports whether one has changed since its last check. The next call compares with
// the states that this call saw.
func (w *fileWatch) hasChanged() bool {
	changed := false
	for i, p := range w.paths {
		now := fileState(p)
		changed = changed || !sameFile(now, w.seen[i])
		w.seen[i] = now
	}
	return changed
}

// sameFile reports whether a and b are states of one unchanged file, or both nil. Another file that was moved to the
// path is a change even if time and size are equal, because Kubernetes replaces mounted files in that way.
func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// startFollowing starts a goroutine that calls read when one of files changes and at each SIGHUP, as followFiles says,
// until ctx ends or end is called. end waits for the goroutine. Until end is called, SIGHUP does not end the process.
// Only this goroutine uses files and calls read, so read may set other paths without a lock. Each configuration has a
// goroutine of its own, and all of them get each SIGHUP. what names the configuration in the log.
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

// retryInterval is the least time after which a refused configuration is read again without a change of its files.
const retryInterval = 5 * time.Second

// followFiles calls read to reload a configuration when one of its files changes, and at each hangup, until ctx ends.
// read returns what it has read for the log, such as the number of rules. An error of read means that the configuration
// was refused and the current one stays in use.
//
// A refused configuration is read again after retryInterval even without a change, because the reason may be in another
// file that does not exist yet or is read a moment later, or in permissions. If the configuration is refused again, that
// is logged only for a new reason.
func followFiles(ctx context.Context, files *fileWatch, hangup <-chan os.Signal, what string, logger *slog.Logger, read func() (slog.Attr, error)) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	refusal := "" // the first line of the error of the last call of read; "" after a success
	var readAt time.Time
	const retryCause = "it was refused before"
	for {
		var cause string // why the configuration is read, for the log
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			cause = "SIGHUP"
			files.hasChanged() // the next check must not see changes that are read now
		case <-tick.C:
			switch {
			case files.hasChanged():
				cause = "the file has changed"
			case refusal != "" && time.Since(readAt) >= retryInterval:
				cause = retryCause
			default:
				continue
			}
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

// recoverPanic calls read, and returns a panic of it as an error with the stack. So a file on which a parser panics
// leaves the service running with its current configuration.
func recoverPanic(read func() (slog.Attr, error)) (size slog.Attr, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return read()
}

// newRules reads AUTH_RULES_FILE; rules are nil if it is not set. Until end is called, a changed file replaces the
// rules, unless it is invalid. The error is a *configError.
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
	return rules, startFollowing(ctx, file, "access rules", logger, func() (slog.Attr, error) {
		changed, err := readRules(cfg)
		if err != nil {
			return slog.Attr{}, err
		}
		rules.Replace(changed)
		return slog.Int("rules", len(changed)), nil
	}), nil
}

// readRules returns the rules in AUTH_RULES_FILE; nil if it is not set. Its error is a *configError.
func readRules(c config) ([]auth.Rule, error) {
	if c.AuthRulesFile == "" {
		return nil, nil
	}
	return parseFile("AUTH_RULES_FILE", c.AuthRulesFile, auth.ParseRules)
}
