package main

import (
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
)

func TestWhatIsSpare(t *testing.T) {
	const mb = 1 << 20
	busy := figures{allocated: 9000 * mb, cycles: 10, goroutines: 5000, live: 500 * mb, held: 1000 * mb}
	for name, tc := range map[string]struct {
		now  figures
		want bool
	}{
		"busy":                          {figures{9200 * mb, 10, 5000, 500 * mb, 1000 * mb}, false},
		"as many, and little to do":     {figures{9010 * mb, 10, 5000, 500 * mb, 1000 * mb}, true},
		"most have ended":               {figures{9020 * mb, 10, 100, 500 * mb, 600 * mb}, true},
		"not so many":                   {figures{9020 * mb, 10, 2600, 500 * mb, 600 * mb}, false},
		"ended, and collected":          {figures{9020 * mb, 11, 100, 20 * mb, 200 * mb}, true},
		"given back":                    {figures{9020 * mb, 11, 100, 20 * mb, 35 * mb}, false},
		"few goroutines with the whole": {figures{9020 * mb, 11, 100, 500 * mb, 600 * mb}, false},
		"grown beyond what is held":     {figures{9000 * mb, 11, 5000, 500 * mb, 490 * mb}, false},
	} {
		s := spare{}
		s.look(busy)
		if got := s.look(tc.now); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// What giving back doesn't help against is not tried again and again.
func TestWhatStaysIsNotSpare(t *testing.T) {
	const mb = 1 << 20
	var s spare
	s.look(figures{live: 500 * mb, held: 900 * mb})
	if !s.look(figures{live: 500 * mb, held: 900 * mb}) {
		t.Error("400 MB are not spare")
	}
	s.given(figures{live: 500 * mb, held: 600 * mb})
	for held, want := range map[uint64]bool{600: false, 610: false, 700: true} {
		if got := s.look(figures{live: 500 * mb, held: held * mb}); got != want {
			t.Errorf("%d MB held: %t", held, got)
		}
	}
	s.look(figures{live: 500 * mb, held: 520 * mb})
	if !s.look(figures{live: 500 * mb, held: 600 * mb}) {
		t.Error("80 MB are not spare although they did not stay")
	}
}

// The memory of many goroutines is spare when they have ended, although no collection has
// found that out, and not sooner or later.
func TestMemoryOfWhatHasEndedIsSpare(t *testing.T) {
	debug.FreeOSMemory()
	over := make(chan struct{})
	var all, begun sync.WaitGroup
	begun.Add(2000)
	for range 2000 {
		all.Go(func() {
			held := make([]byte, 100_000) // too large for its stack
			begun.Done()
			<-over
			runtime.KeepAlive(held)
		})
	}
	begun.Wait()
	runtime.GC()
	var s spare
	s.look(newFigures())
	if s.look(newFigures()) {
		t.Error("spare while it is used")
	}
	close(over)
	all.Wait()
	if !s.look(newFigures()) {
		t.Error("not spare although all has ended")
	}
	debug.FreeOSMemory()
	if s.look(newFigures()) {
		t.Error("spare when it has been given back")
	}
}
