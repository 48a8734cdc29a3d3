package main

import (
	"log/slog"
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// unmanagedMemory is what a process needs besides what the Go runtime counts: its binary and
	// the kernel's share, in bytes. Another tenth of the container is left free.
	unmanagedMemory = 32 << 20
	// minMemoryLimit is the least memory limit that is derived from a container's.
	minMemoryLimit = 48 << 20
	// logMemoryPart is the part of the memory limit that a log in memory has by default: 1/4.
	logMemoryPart = 4
)

// limitMemory sets the memory limit of the Go runtime from that of the container, unless GOMEMLIMIT
// is set, and returns the bound of a log in memory: EVENTS_MAX_BYTES, or where that is unset at most a
// quarter of the memory limit. It logs both. containerLimit returns the limit of the container in bytes.
func (c *config) limitMemory(containerLimit func() (uint64, error), logger *slog.Logger) (logBytes int64) {
	limit := debug.SetMemoryLimit(-1)
	source := "GOMEMLIMIT"
	if limit == math.MaxInt64 {
		source = "the container's limit"
		container, err := containerLimit()
		if err != nil || container == 0 || container > math.MaxInt64/2 {
			return int64(c.EventsMaxBytes) // no cgroup, or one without a limit
		}
		limit = derivedMemoryLimit(int64(container))
		debug.SetMemoryLimit(limit)
	}
	logBytes = int64(c.EventsMaxBytes)
	if !c.eventsMaxBytesSet {
		logBytes = min(logBytes, limit/logMemoryPart)
	}
	attrs := []any{"memory_limit", limit, "from", source}
	if c.EventsURL.IsZero() {
		attrs = append(attrs, "events_max_bytes", logBytes)
	}
	logger.Info("memory is limited", attrs...)
	return logBytes
}

// derivedMemoryLimit returns the memory limit for a container of that many bytes.
func derivedMemoryLimit(container int64) int64 {
	return max(container-container/10-unmanagedMemory, min(container, minMemoryLimit))
}

// containerMemory returns the memory limit of this process's cgroup (version 1 or 2) in bytes; an
// error, or a very large number, where there is none.
func containerMemory() (uint64, error) { return memlimit.FromCgroup() }
