package mcp

import (
	"log/slog"
	"runtime"
	"strings"
	"testing"
)

// F23: what a child prints beside MCP is skipped, with one line in the log.
func TestBannerOnStdoutIsSkipped(t *testing.T) {
	var log syncBuffer
	c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, stdioConfig("banner", ""))
	childStateOf(t, c)
	if n := strings.Count(log.String(), "not MCP"); n != 1 || !strings.Contains(log.String(), "Welcome!") {
		t.Errorf("%d lines: %s, want n 1, log containing Welcome!", n, log.String())
	}
}

// The first message of a child may follow a byte order mark, which .NET writes.
func TestByteOrderMarkOnStdoutIsSkipped(t *testing.T) {
	childStateOf(t, newClient(t, Options{}, stdioConfig("bom", "")))
}

// F23: a line of 100 MiB ends the session, not our memory; the next child answers.
func TestEndlessLineEndsTheSessionOnly(t *testing.T) {
	w := newChildMonitor(t)
	c := newClient(t, Options{}, stdioConfig("serve", w.addr()))
	c.Tools(t.Context())
	first := w.waitForStart("serve")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := c.Call(t.Context(), Call{Tool: "flood"})
	if e := mustFail(t, err); e.Kind != TooLarge {
		t.Errorf("call error %v, want Kind TooLarge", e)
	}
	first.waitForEnd()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 32<<20 {
		t.Errorf("%d MiB were allocated, want at most 32", got>>20)
	}
	childStateOf(t, c)
}

// F23: of 256 MiB on stderr, half of it without a line feed, the end is kept.
func TestFloodOnStderr(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(new(syncBuffer), &slog.HandlerOptions{Level: slog.LevelDebug}))}, stdioConfig("stderr", ""))
	childStateOf(t, c)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 32<<20 {
		t.Errorf("%d MiB were allocated, want at most 32", got>>20)
	}
}
