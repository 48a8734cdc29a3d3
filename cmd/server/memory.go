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
// The log has the larger share because it holds the texts of a run after its end too. A log elsewhere uses the same share for its caches, and with file: for its server. No log needs
// more than 256 MiB by default, elsewhere 384 MiB: what exceeds that is for runs.
const (
	// unmanagedMemory is what a process needs besides what the Go runtime counts: the pages of its
	// binary, some 40 MiB, and the kernel's share.
	unmanagedMemory = 44 << 20
	// minMemoryLimit is the least memory limit that is derived from a container's.
	minMemoryLimit = 48 << 20
	// garbagePart is the part of the memory limit that is left for garbage: 1/4. With less, the
	// collector would run nearly all the time.
	garbagePart = 4
	// processMemory is what the Go runtime counts without runs.
	processMemory = 16 << 20
	// minContentMemory is what the log and runs have at least.
	minContentMemory = 12 << 20
)

// memoryLimits says how much memory is used for what, in bytes.
type memoryLimits struct {
	log  int64 // the log
	runs int64 // all runs together; 0 without a memory limit
}

// limitMemory sets the memory limit of the Go runtime from that of the container, unless GOMEMLIMIT
// is set, and divides it. A log in memory has EVENTS_MAX_BYTES, or less where that is unset. It logs
// all of it. containerLimit returns the limit of the container in bytes.
func (c *config) limitMemory(containerLimit func() (uint64, error), logger *slog.Logger) memoryLimits {
	limits := memoryLimits{log: jetstream.DefaultMemory}
	inMemory := c.EventsURL.IsZero()
	if inMemory {
		limits.log = int64(c.EventsMaxBytes)
	}
	limit := debug.SetMemoryLimit(-1)
	source := "GOMEMLIMIT"
	if limit == math.MaxInt64 {
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
	// A log that was given more drops ended runs when memory is short.
	limits.runs = max(content-limits.log, content/3)
	logger.Info("memory is limited", "memory_limit", limit, "from", source, "log_memory", limits.log, "runs_memory", limits.runs)
	return limits
}

// derivedMemoryLimit returns the memory limit for a container of that many bytes.
func derivedMemoryLimit(container int64) int64 {
	return max(container-container/10-unmanagedMemory, min(container, minMemoryLimit))
}

// containerMemory returns the memory limit of this process's cgroup (version 1 or 2) in bytes; an
// error, or a very large number, where there is none.
func containerMemory() (uint64, error) { return memlimit.FromCgroup() }

// maxToolBytes returns the most bytes that the definitions of one MCP server's tools may have: 64 MiB, or
// a part of the memory limit. While it is read, a list is in memory about four times.
func maxToolBytes() int {
	return int(min(max(debug.SetMemoryLimit(-1)/32, 2<<20), 64<<20))
}
