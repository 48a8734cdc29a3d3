package main

import (
	"errors"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"testing"
)

func TestMemoryLimitIsDerivedFromTheContainers(t *testing.T) {
	const mib = 1 << 20
	for _, row := range []struct {
		name               string
		container          uint64
		err                error
		goLimit            int64
		eventsSet          bool
		wantLimit, wantLog int64 // in MiB; wantLimit 0: none
	}{
		{name: "512 MiB", container: 512 * mib, goLimit: math.MaxInt64, wantLimit: 428, wantLog: 107},
		{name: "256 MiB", container: 256 * mib, goLimit: math.MaxInt64, wantLimit: 198, wantLog: 49},
		{name: "128 MiB", container: 128 * mib, goLimit: math.MaxInt64, wantLimit: 83, wantLog: 20},
		{name: "16 GiB", container: 16 << 30, goLimit: math.MaxInt64, wantLimit: 14713, wantLog: 256},
		{name: "a set log", container: 512 * mib, goLimit: math.MaxInt64, eventsSet: true, wantLimit: 428, wantLog: 256},
		{name: "GOMEMLIMIT", container: 512 * mib, goLimit: 300 * mib, wantLimit: 300, wantLog: 75},
		{name: "no limit", container: math.MaxInt64 - 4095, goLimit: math.MaxInt64, wantLog: 256},
		{name: "no cgroup", err: errors.New("none"), goLimit: math.MaxInt64, wantLog: 256},
	} {
		t.Run(row.name, func(t *testing.T) {
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(row.goLimit))
			var out strings.Builder
			c := config{EventsMaxBytes: 256 * mib, eventsMaxBytesSet: row.eventsSet}
			logBytes := c.limitMemory(func() (uint64, error) { return row.container, row.err }, slog.New(slog.NewJSONHandler(&out, nil)))
			limit := debug.SetMemoryLimit(-1) / mib
			if row.wantLimit == 0 {
				row.wantLimit = math.MaxInt64 / mib
			}
			if limit != row.wantLimit || logBytes/mib != row.wantLog {
				t.Errorf("got a limit of %d MiB and a log of %d MiB, want %d and %d", limit, logBytes/mib, row.wantLimit, row.wantLog)
			}
			if limited := row.wantLimit < 1<<20; strings.Contains(out.String(), "memory_limit") != limited {
				t.Errorf("got the log %q, want the limits in it: %t", &out, limited)
			}
		})
	}
}
