package main

import (
	"log/slog"
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

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
// The log has the larger share because it holds the texts of a run after its end too. A log on disk or on NATS uses its
// share for caches, and on disk also for its NATS server. By default a log in memory gets at most 256 MiB and another
// log at most 384 MiB; runs get the rest.
const (
	// unmanagedMemory is what a process needs in addition to the memory that the Go runtime counts: the pages of its
	// binary, some 40 MiB, and memory of the kernel.
	unmanagedMemory = 44 << 20
	// minMemoryLimit is the least memory limit that is derived from the limit of a container, unless that is smaller.
	minMemoryLimit = 48 << 20
	// garbagePart divides the memory limit: a quarter is left for garbage. With less, the garbage collector would run
	// nearly all the time.
	garbagePart = 4
	// processMemory is the memory that the Go runtime counts without any run.
	processMemory = 16 << 20
	// minContentMemory is the least memory of the log and all runs together.
	minContentMemory = 12 << 20
)

// memoryLimits says how much memory the log and the runs may use, in bytes.
type memoryLimits struct {
	log  int64
	runs int64 // of all runs together; 0 means without limit
}

// limitMemory divides the memory limit of the Go runtime between the log and the runs. Without GOMEMLIMIT it first sets
// that limit, from the limit of the container. If the container has no limit either, the log gets its default and the
// runs have no limit. EVENTS_MAX_BYTES, if set, decides for a log in memory. limitMemory logs the limits.
// containerLimit returns the limit of the container in bytes, or an error outside of a container.
func (c *config) limitMemory(containerLimit func() (uint64, error), logger *slog.Logger) memoryLimits {
	limits := memoryLimits{log: jetstream.DefaultMemory}
	inMemory := c.EventsURL.IsZero()
	if inMemory {
		limits.log = int64(c.EventsMaxBytes)
	}
	limit := debug.SetMemoryLimit(-1) // only returns the limit
	source := "GOMEMLIMIT"
	if limit == math.MaxInt64 { // GOMEMLIMIT is not set
		source = "the container's limit"
		container, err := containerLimit()
		if err != nil || container == 0 || container > math.MaxInt64/2 {
			return limits // no cgroup, or one without a limit
		}
		limit = derivedMemoryLimit(int64(container))
		debug.SetMemoryLimit(limit)
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

// derivedMemoryLimit returns the memory limit of the Go runtime in a container whose limit is that many bytes.
func derivedMemoryLimit(container int64) int64 {
	return max(container-container/10-unmanagedMemory, min(container, minMemoryLimit))
}

// containerMemory returns the memory limit of this process's cgroup (version 1 or 2) in bytes. Without a cgroup it
// returns an error, and for a cgroup without a limit an error, 0 or a very large number.
func containerMemory() (uint64, error) { return memlimit.FromCgroup() }

// maxToolBytes returns how many bytes the tool definitions of one MCP server may have: 1/32 of the memory limit, but
// from 2 MiB to 64 MiB. A list of tools is in memory about four times while it is read.
func maxToolBytes() int {
	return int(min(max(debug.SetMemoryLimit(-1)/32, 2<<20), 64<<20))
}
