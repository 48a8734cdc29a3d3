package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// spareEvery is how often spare memory is looked for.
	spareEvery = 10 * time.Second
	// spareLooks is for how many looks what is spare would last.
	spareLooks = 6
	// spareLeast is less than what it is worth to collect for.
	spareLeast = 16 << 20
)

// figures are what the runtime says of its memory.
type figures struct {
	allocated  uint64 // bytes, since the start
	cycles     uint64 // collections, since the start
	goroutines uint64
	live       uint64 // bytes that the last collection found in use
	held       uint64 // bytes of the heap that are the process's
}

// spare finds memory that nothing needs: what a busy time has left. The runtime gives back
// what it has no use for, but no more than down to twice what the last collection found in
// use, and where little is allocated the next one is minutes off.
type spare struct {
	last    figures
	peopled uint64 // goroutines at the look that saw the last collection
	stays   uint64 // bytes that giving back has not helped against: gaps between what lives
}

// look reports whether there is memory to give back: so much that it would last for
// spareLooks looks at the rate of what was allocated since the last one. So the collection
// that this takes comes once a minute at most, at a steady rate.
func (s *spare) look(now figures) bool {
	used := now.allocated - s.last.allocated
	left := s.left(now)
	s.stays = min(s.stays, left)
	return left-s.stays > max(spareLeast, spareLooks*used)
}

// left is what is held and not in use.
//
// What was found in use counts by the goroutines that are left of those at that time: when a
// thousand streams end at once and nobody comes, nothing else would tell for two minutes.
func (s *spare) left(now figures) uint64 {
	if now.cycles != s.last.cycles {
		s.peopled = now.goroutines
	}
	s.last = now
	live := now.live
	if now.goroutines < s.peopled/2 {
		live = live / s.peopled * now.goroutines
	}
	return now.held - min(live, now.held)
}

// given notes what is held when all that could be was given back.
func (s *spare) given(now figures) { s.stays = s.left(now) }

// newFigures are those of now.
func newFigures() figures {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/sched/goroutines:goroutines"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) uint64 { return samples[i].Value.Uint64() }
	return figures{value(0), value(1), value(2), value(3), value(4) + value(5) + value(6)}
}

// giveBackSpare gives spare memory back to the system until end is called.
func giveBackSpare(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(spareEvery)
		defer tick.Stop()
		var s spare
		s.look(newFigures())
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if s.look(newFigures()) {
				debug.FreeOSMemory()
				s.given(newFigures())
			}
		}
	}()
	return func() { cancel(); <-ended }
}
