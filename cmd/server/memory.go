package main

import (
	"log/slog"
	"math"
	"runtime/debug"

	"answerd/internal/event/jetstream"
)

// How the memory of a container is divided, in MiB:
//
//	container               512   256   128
//	- a tenth, kept free     51    26    13
//	- unmanagedMemory        44    44    44
//	= memory limit          417   186    71
//	- garbage, a quarter    104    47    18
//	- processMemory          16    16    16
//	= the log, two thirds   198    83    25
//	  runs, a third          99    41    12
//
// The log has the larger share because it also holds the texts of ended runs. A log on disk or on NATS uses its share
// for caches, and a log on disk also for its NATS server. By default a log in memory gets at most 256 MiB, and other
// logs at most 384 MiB. Runs get the rest.
const (
	// unmanagedMemory is memory that the process needs but the Go runtime does not count: the pages of its binary, some
	// 40 MiB, and kernel memory.
	unmanagedMemory = 44 << 20
	// minMemoryLimit is the least memory limit that setMemoryLimit sets, unless the container has less memory.
	minMemoryLimit = 48 << 20
	// garbagePart is the divisor for the share of garbage: a quarter of the memory limit. With less, the garbage
	// collector would run nearly all the time.
	garbagePart = 4
	// processMemory is the memory that the Go runtime counts when no run is active.
	processMemory = 16 << 20
	// minContentMemory is the least memory that the log and all runs get together.
	minContentMemory = 12 << 20
)

// memoryLimits holds the memory limits of the log and of the runs, in bytes.
type memoryLimits struct {
	log  int64
	runs int64 // for all runs together; 0 means no limit
}

// limitMemory divides the Go runtime's memory limit between the log and the runs, and logs the result. Without
// GOMEMLIMIT it first sets the memory limit, from the container's. If the container has no limit either, the log gets
// its default and the runs have no limit. EVENTS_MAX_BYTES, if set, is the limit of a log in memory.
//
// containerLimit returns the memory limit of this process's cgroup in bytes. Without a cgroup it returns an error. For a
// cgroup without a limit it returns an error, 0 or a very large number.
func (c *config) limitMemory(containerLimit func() (uint64, error), logger *slog.Logger) memoryLimits {
	limits := memoryLimits{log: jetstream.DefaultMemory}
	inMemory := c.EventsURL.IsZero()
	if inMemory {
		limits.log = int64(c.EventsMaxBytes)
	}
	limit, source := setMemoryLimit(containerLimit)
	if source == "" {
		return limits
	}
	content := max(limit-limit/garbagePart-processMemory, minContentMemory)
	if !inMemory || !c.eventsMaxBytesSet {
		limits.log = min(limits.log, content/3*2)
	}
	// Runs get at least a third, even if EVENTS_MAX_BYTES gives the log more than is left: a log in memory deletes
	// ended runs when memory is short (newMemoryCheck).
	limits.runs = max(content-limits.log, content/3)
	logger.Info("memory is limited", "memory_limit", limit, "from", source, "log_memory", limits.log, "runs_memory", limits.runs)
	return limits
}

// setMemoryLimit returns the memory limit of the Go runtime, and says for the log where the limit comes from. Without
// GOMEMLIMIT it sets the limit that follows from the container's. source is "" if the container has no limit either.
func setMemoryLimit(containerLimit func() (uint64, error)) (limit int64, source string) {
	limit = debug.SetMemoryLimit(-1) // a negative value only reads the limit
	if limit != math.MaxInt64 {
		return limit, "GOMEMLIMIT"
	}
	bytes, err := containerLimit()
	if err != nil || bytes == 0 || bytes > math.MaxInt64/2 {
		return 0, "" // no cgroup, or one without a limit
	}
	container := int64(bytes)
	limit = max(container-container/10-unmanagedMemory, min(container, minMemoryLimit))
	debug.SetMemoryLimit(limit)
	return limit, "the container's limit"
}

// maxToolBytes bounds the bytes of one MCP server's tool definitions. It is 1/32 of the memory limit, but at least 2
// MiB and at most 64 MiB. While a list of tools is read, it takes about four times its size in memory.
func maxToolBytes() int {
	return int(min(max(debug.SetMemoryLimit(-1)/32, 2<<20), 64<<20))
}
