package main

import (
	"errors"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"testing"

	"answerd/internal/auth"
)

func TestMemoryLimitIsDerivedFromTheContainers(t *testing.T) {
	const mib = 1 << 20
	for _, row := range []struct {
		name      string
		container uint64
		err       error
		goLimit   int64
		eventsSet bool
		eventsURL string

		wantLimit, wantLog, wantRuns int64 // in MiB; wantLimit 0: none
	}{
		{name: "512 MiB", container: 512 * mib, goLimit: math.MaxInt64, wantLimit: 416, wantLog: 197, wantRuns: 98},
		{name: "256 MiB", container: 256 * mib, goLimit: math.MaxInt64, wantLimit: 186, wantLog: 82, wantRuns: 41},
		{name: "128 MiB", container: 128 * mib, goLimit: math.MaxInt64, wantLimit: 71, wantLog: 24, wantRuns: 12},
		{name: "64 MiB", container: 64 * mib, goLimit: math.MaxInt64, wantLimit: 48, wantLog: 13, wantRuns: 6},
		{name: "16 GiB", container: 16 << 30, goLimit: math.MaxInt64, wantLimit: 14701, wantLog: 256, wantRuns: 10754},
		{name: "a set log", container: 512 * mib, goLimit: math.MaxInt64, eventsSet: true, wantLimit: 416, wantLog: 256, wantRuns: 98},
		{name: "GOMEMLIMIT", container: 512 * mib, goLimit: 300 * mib, wantLimit: 300, wantLog: 139, wantRuns: 69},
		{name: "a log elsewhere", container: 512 * mib, goLimit: math.MaxInt64, eventsURL: "nats://127.0.0.1", wantLimit: 416, wantLog: 197, wantRuns: 98},
		{name: "a large log elsewhere", container: 16 << 30, goLimit: math.MaxInt64, eventsSet: true, eventsURL: "nats://127.0.0.1", wantLimit: 14701, wantLog: 384, wantRuns: 10626},
		{name: "no limit", container: math.MaxInt64 - 4095, goLimit: math.MaxInt64, wantLog: 256},
		{name: "no cgroup", err: errors.New("none"), goLimit: math.MaxInt64, wantLog: 256},
	} {
		t.Run(row.name, func(t *testing.T) {
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(row.goLimit))
			var out strings.Builder
			c := config{EventsMaxBytes: 256 * mib, eventsMaxBytesSet: row.eventsSet, EventsURL: auth.NewSecret(row.eventsURL)}
			got := c.limitMemory(func() (uint64, error) { return row.container, row.err }, slog.New(slog.NewJSONHandler(&out, nil)))
			limit := debug.SetMemoryLimit(-1) / mib
			if row.wantLimit == 0 {
				row.wantLimit = math.MaxInt64 / mib
			}
			if limit != row.wantLimit || got.log/mib != row.wantLog || got.runs/mib != row.wantRuns {
				t.Errorf("got a limit of %d MiB, a log of %d MiB and %d MiB for runs, want %d, %d and %d", limit, got.log/mib, got.runs/mib, row.wantLimit, row.wantLog, row.wantRuns)
			}
			if limited := row.wantLimit < 1<<20; strings.Contains(out.String(), "memory_limit") != limited {
				t.Errorf("got the log %q, want the limits in it: %t", &out, limited)
			}
		})
	}
}
