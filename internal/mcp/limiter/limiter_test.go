package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/mcp/limiter"
)

// serverLoad calls a server that carries out capacity calls at a time, for some time, from that many callers.
// Each call takes the server a time that took returns.
type serverLoad struct {
	limiter           *limiter.Limiter
	capacity, callers int
	took              func(tool string) time.Duration
	outcome           limiter.Outcome
}

// run returns the highest number of calls in flight.
func (d serverLoad) run(t *testing.T, length time.Duration) (most int) {
	t.Helper()
	over := time.Now().Add(length)
	server := make(chan struct{}, d.capacity)
	var mu sync.Mutex
	var all sync.WaitGroup
	inFlight := 0
	for i := range d.callers {
		all.Go(func() {
			for time.Now().Before(over) {
				tool := fmt.Sprint(i % 3)
				ticket := d.limiter.Enqueue("", tool)
				<-ticket.Admitted()
				mu.Lock()
				inFlight++
				most = max(most, inFlight)
				mu.Unlock()
				server <- struct{}{}
				<-time.After(d.took(tool))
				<-server
				mu.Lock()
				inFlight--
				mu.Unlock()
				ticket.End(d.outcome)
			}
		})
	}
	all.Wait()
	return most
}

// constantTime returns 50 ms for every call.
func constantTime(string) time.Duration { return 50 * time.Millisecond }

// varyingTime returns times that differ by tool and by call.
func varyingTime(tool string) time.Duration {
	mean := map[string]float64{"0": 5, "1": 50, "2": 400}[tool]
	return time.Duration(mean * rand.ExpFloat64() * float64(time.Millisecond))
}

func TestLimitGrowsWhileLatencyStays(t *testing.T) {
	for name, took := range map[string]func(string) time.Duration{"constant": constantTime, "varying": varyingTime} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter.New(0)
				if got := l.Limit(); got != limiter.Min {
					t.Errorf("Limit() at first = %d, want %d", got, limiter.Min)
				}
				serverLoad{limiter: l, capacity: 1000, callers: 1000, took: took, outcome: limiter.Answered}.run(t, 20*time.Second)
				if got := l.Limit(); got < limiter.Max/2 {
					t.Errorf("Limit() of a server with capacity = %d, want at least %d", got, limiter.Max/2)
				}
			})
		})
	}
}

func TestLimitReaches256WithinThreeSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.New(0)
		most := serverLoad{limiter: l, capacity: 1000, callers: 1000, took: constantTime, outcome: limiter.Answered}.run(t, 3*time.Second)
		if most < 250 || most > limiter.Max {
			t.Errorf("most calls in flight = %d, want 250 to %d", most, limiter.Max)
		}
	})
}

// A limit beyond what the server can take at a time would only move the queue to the server.
func TestLimitStaysWhereLatencyRises(t *testing.T) {
	for name, took := range map[string]func(string) time.Duration{"constant": constantTime, "varying": varyingTime} {
		for _, capacity := range []int{1, 10, 40, 100} {
			t.Run(fmt.Sprint(name, capacity), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := limiter.New(0)
					d := serverLoad{limiter: l, capacity: capacity, callers: 300, took: took, outcome: limiter.Answered}
					d.run(t, 15*time.Second)
					const samples = 24
					sum := 0 // the latency varies at random, and the limit with it
					for range samples {
						d.run(t, time.Second)
						sum += l.Limit()
					}
					if got, least, most := sum/samples, min(capacity, 80)/2, max(capacity, limiter.Min)*7/2; got < least || got > most {
						t.Errorf("mean Limit() of a server with %d calls at a time = %d, want %d to %d", capacity, got, least, most)
					}
				})
			})
		}
	}
}

// A limit that grew while the server was fast shrinks when it is slow.
func TestLimitShrinksWhenLatencyRises(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.New(0)
		serverLoad{limiter: l, capacity: 1000, callers: 1000, took: constantTime, outcome: limiter.Answered}.run(t, 2*time.Second)
		serverLoad{limiter: l, capacity: 20, callers: 1000, took: constantTime, outcome: limiter.Answered}.run(t, 15*time.Second)
		if got := l.Limit(); got > 50 {
			t.Errorf("Limit() after the server's capacity has fallen to 20 = %d, want at most 50", got)
		}
	})
}

// A server that is slower than before for another reason is not limited forever.
func TestLimitGrowsAgainWithANewLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.New(0)
		d := serverLoad{limiter: l, capacity: 1000, callers: 1000, took: constantTime, outcome: limiter.Answered}
		d.run(t, 2*time.Second)
		d.took = func(string) time.Duration { return 500 * time.Millisecond }
		d.run(t, time.Minute)
		if got := l.Limit(); got < limiter.Max/2 {
			t.Errorf("Limit() a minute after the latency has become 10 times as high = %d, want at least %d", got, limiter.Max/2)
		}
	})
}

func TestLimitHalvesOnOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.New(0)
		serverLoad{limiter: l, capacity: 1000, callers: 1000, took: constantTime, outcome: limiter.Answered}.run(t, 2*time.Second)
		before := l.Limit()

		var inFlight []*limiter.Ticket
		for range 5 {
			inFlight = append(inFlight, l.Enqueue("", "0"))
		}

		for _, ticket := range inFlight {
			ticket.End(limiter.Overload)
		}

		if got := l.Limit(); got != before/2 {
			t.Errorf("Limit() after five timeouts at the same time = %d, want %d", got, before/2)
		}

		for range 10 {
			l.Enqueue("", "0").End(limiter.Overload)
		}

		if got := l.Limit(); got != limiter.Min {
			t.Errorf("Limit() after ten more = %d, want %d", got, limiter.Min)
		}
		serverLoad{limiter: l, capacity: 1000, callers: 1000, took: constantTime, outcome: limiter.Answered}.run(t, 4*time.Second)
		if got := l.Limit(); got != limiter.Min {
			t.Errorf("Limit() within holdTime after the last decrease = %d, want %d", got, limiter.Min)
		}
	})
}

func TestLimitOfAnUnusedServerStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.New(0)
		serverLoad{limiter: l, capacity: 1000, callers: 9, took: constantTime, outcome: limiter.Answered}.run(t, 20*time.Second)
		if got := l.Limit(); got != limiter.Min {
			t.Errorf("Limit() with nine calls at a time = %d, want %d", got, limiter.Min)
		}
	})
}

// A call that waits for a person, or fails for a reason of its own, says nothing about the server's
// load.
func TestLimitIgnoresExcludedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.New(0)
		serverLoad{limiter: l, capacity: 1000, callers: 1000, took: constantTime, outcome: limiter.Answered}.run(t, 2*time.Second)

		before := l.Limit()
		for range 10 {
			var all sync.WaitGroup
			for range before {
				all.Go(func() {
					ticket := l.Enqueue("", "0")
					<-ticket.Admitted()
					ticket.Exclude()
					<-time.After(time.Hour)
					ticket.End(limiter.Answered)
				})
				all.Go(func() {
					ticket := l.Enqueue("", "0")
					<-ticket.Admitted()
					<-time.After(time.Hour)
					ticket.End(limiter.Unknown)
				})
			}
			all.Wait()
		}

		if got := l.Limit(); got != before {
			t.Errorf("Limit() = %d, want %d as before", got, before)
		}
	})
}

func TestFixedLimitStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.New(3)
		most := serverLoad{limiter: l, capacity: 1000, callers: 1000, took: constantTime, outcome: limiter.Answered}.run(t, 5*time.Second)
		serverLoad{limiter: l, capacity: 1000, callers: 10, took: constantTime, outcome: limiter.Overload}.run(t, time.Second)
		if got := l.Limit(); got != 3 || most != 3 {
			t.Errorf("Limit() = %d with at most %d in flight, want 3 and 3", got, most)
		}
	})
}

func TestCallersTakeTurns(t *testing.T) {
	l := limiter.New(1)
	first := l.Enqueue("noisy", "")
	<-first.Admitted()

	type waiting struct {
		name   string
		ticket *limiter.Ticket
	}

	var queue []waiting
	for i, name := range []string{"noisy", "noisy", "noisy", "ada", "bob", "ada"} {
		queue = append(queue, waiting{fmt.Sprint(name, i), l.Enqueue(name, "")})
	}

	first.End(limiter.Answered)
	first.End(limiter.Answered) // once is enough, and twice is not two

	var order []string
	for range queue {
		var now []waiting
		for _, w := range queue {
			select {
			case <-w.ticket.Admitted():
				now = append(now, w)
			default:
			}
		}
		if len(now) != len(order)+1 {
			t.Fatalf("%d calls admitted, want %d", len(now), len(order)+1)
		}
		for _, w := range now {
			if !slices.Contains(order, w.name) {
				order = append(order, w.name)
				w.ticket.End(limiter.Answered)
				break
			}
		}
	}

	if got, want := fmt.Sprint(order), "[noisy0 ada3 bob4 noisy1 ada5 noisy2]"; got != want {
		t.Errorf("order = %s, want %s", got, want)
	}
}

func TestCallerWhoLeavesFreesTheSlot(t *testing.T) {
	l := limiter.New(1)
	first, gone, next := l.Enqueue("a", ""), l.Enqueue("b", ""), l.Enqueue("c", "")
	gone.End(limiter.Unknown)
	first.End(limiter.Answered)

	select {
	case <-next.Admitted():
	default:
		t.Error("the call behind one that left is not admitted, want it to be")
	}

	select {
	case <-gone.Admitted():
		t.Error("the call that left is admitted, want it not to be")
	default:
	}

	next.End(limiter.Answered)
	<-l.Enqueue("b", "").Admitted()
}
