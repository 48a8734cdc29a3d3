package delivery

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/auth/authtest"
	"answerd/internal/event"
)

// target is what the receiver without a socket is called.
const target = "https://receiver.example/runs"

// serveFake replaces the network of d by handlers, by host: sockets would stop the fake time.
func serveFake(d *Deliverer, hosts map[string]http.Handler) {
	transport := authtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		hosts[r.URL.Host].ServeHTTP(w, r)
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		return w.Result(), nil
	})
	d.sender.configured.Transport = transport
	for limit := range 4 {
		d.sender.callbacks[fetchClass(limit)] = &http.Client{Transport: transport, Timeout: attemptTimeout}
	}
}

// A receiver that is down for an hour gets every run, each attempt with the same id.
func TestReceiverThatIsDownForAnHourGetsEveryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var times sync.Map // by id, the first two attempts

		r := &receiver{t: t, answer: func(int) int {
			if time.Since(begun) < time.Hour {
				return 503
			}
			return 204
		}}

		p := newProcess(t, Options{URL: target, Log: newLog(), Local: true})
		watch := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			all, _ := times.LoadOrStore(q.Header.Get("webhook-id"), &[]time.Time{})
			at := all.(*[]time.Time)
			*at = append(*at, time.Now())
			r.ServeHTTP(w, q)
		})

		serveFake(p.Deliverer, map[string]http.Handler{"receiver.example": watch})
		runs := make(map[string]bool)
		for range 40 {
			runs[p.endRun("", answered).ID] = true
			<-time.After(time.Second)
		}

		<-time.After(90 * time.Minute)
		ids, attempts := make(map[string]string), r.attempts()
		for _, a := range attempts {
			if known, ok := ids[a.body.RunID]; ok && known != a.id {
				t.Errorf("webhook-id of %s = %s and %s, want one", a.body.RunID, known, a.id)
			}
			ids[a.body.RunID] = a.id
		}
		if len(ids) != len(runs) {
			t.Errorf("runs delivered = %d, want %d", len(ids), len(runs))
		}
		if n := len(attempts); n > 40*30 {
			t.Errorf("attempts = %d in 90 minutes, want at most 30 of each run", n)
		}

		times.Range(func(id, value any) bool {
			at := *value.(*[]time.Time)
			if len(at) < 2 || at[1].Sub(at[0]) > 5*time.Second {
				t.Errorf("%s: attempts at %v, want the second one within 5 s", id, at)
			}
			return true
		})

		if n := p.waitingTally().count; n != 0 {
			t.Errorf("waiting = %d, want 0", n)
		}
		before := len(attempts)
		<-time.After(time.Hour)
		if n := len(r.attempts()); n != before {
			t.Errorf("attempts after all were delivered = %d, want none", n-before)
		}
		p.stop()
	})
}

func TestDeliveryIsGivenUpAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log authtest.LogBuffer
		r := &receiver{t: t, answer: alwaysStatus(500)}
		p := newProcess(t, Options{URL: target + "?key=canary", Log: newLog(), Local: true, Logger: log.Logger()})
		serveFake(p.Deliverer, map[string]http.Handler{"receiver.example": r})
		run := p.endRun("", answered)
		<-time.After(23 * time.Hour)
		if strings.Contains(log.String(), "given up") {
			t.Errorf("log after 23 hours = %s, want no delivery given up", log.String())
		}
		<-time.After(2 * time.Hour)
		n := len(r.attempts())
		<-time.After(24 * time.Hour)
		if m := len(r.attempts()); m != n || n < 100 {
			t.Errorf("attempts = %d after a day and %d after two, want the same, above 100", n, m)
		}
		if text := log.String(); strings.Count(text, "delivery given up") != 1 || !strings.Contains(text, run.ID) || strings.Contains(text, "canary") {
			t.Errorf("log = %s, want one line that names the run and not the URL's query", text)
		}
		p.stop()
	})
}

// A slow receiver has at most 8 attempts at a time, and delays no other receiver.
func TestSlowReceiverDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		slow := http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
			most.Store(max(most.Load(), now.Add(1)))
			<-q.Context().Done()
			now.Add(-1)
		})

		fast := &receiver{t: t, answer: alwaysStatus(200)}
		p := newProcess(t, Options{URL: target, CallbackOrigins: []string{"https://fast.example"}, Log: newLog(), Local: true})
		serveFake(p.Deliverer, map[string]http.Handler{"receiver.example": slow, "fast.example": fast})

		for i := range 100 {
			p.endRun(fmt.Sprintf("https://fast.example/%d", i), answered)
			<-time.After(50 * time.Millisecond)
		}

		<-time.After(10 * time.Second)
		if n := len(fast.attempts()); n != 100 {
			t.Errorf("deliveries of the fast receiver = %d, want 100", n)
		}
		if n := most.Load(); n != maxAttemptsPerReceiver {
			t.Errorf("attempts at a time of the slow receiver = %d, want %d", n, maxAttemptsPerReceiver)
		}
		p.stop()
	})
}

// A process that dies before the terminal event leaves a delivery that waits for it, and is dropped if
// the run ends in another way.
func TestDeliveryIsAboutTheEndThatTheLogHas(t *testing.T) {
	for name, c := range map[string]struct {
		end  event.Body
		want int
	}{"the same end": {answered, 1}, "another end": {event.Cancelled{Reason: "requested"}, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &receiver{t: t, answer: alwaysStatus(200)}
				p := newProcess(t, Options{URL: target, Log: newLog()})
				serveFake(p.Deliverer, map[string]http.Handler{"receiver.example": r})
				run := p.startRun()
				p.prepare(run, "", answered).Release() // as the end of a lease does
				<-time.After(time.Minute)
				if n := len(r.attempts()); n != 0 {
					t.Errorf("attempts before the end = %d, want 0", n)
				}
				p.appendEnd(run, c.end)
				<-time.After(time.Minute)
				if n := len(r.attempts()); n != c.want {
					t.Errorf("attempts after the end = %d, want %d", n, c.want)
				}
				page, err := p.Log.Runs(t.Context(), event.Filter{Owner: deliveryOwner})
				if err != nil || len(page.Runs) != 0 {
					t.Errorf("stored deliveries = %d, %v, want 0", len(page.Runs), err)
				}
				p.stop()
			})
		})
	}
}

// With the log in memory, Drain waits for a receiver that is down for a moment, and says what it could
// not deliver to one that stays down.
func TestDrainWaitsForDeliveriesInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, failures := range []int{1, 1000} {
			var log authtest.LogBuffer
			r := &receiver{t: t, answer: func(n int) int {
				if n <= failures {
					return 500
				}
				return 200
			}}

			p := newProcess(t, Options{URL: target, Log: newLog(), Local: true, Logger: log.Logger()})
			serveFake(p.Deliverer, map[string]http.Handler{"receiver.example": r})
			p.endRun("", answered)
			begun := time.Now()
			ctx, cancel := contextFor(time.Minute)
			p.Drain(ctx)
			cancel()
			p.claims()
			p.done.Wait()
			took, lost := time.Since(begun), strings.Contains(log.String(), "deliveries lost")
			if want := failures > 1; lost != want {
				t.Errorf("receiver that fails %d times: deliveries lost: %t, want %t", failures, lost, want)
			}
			if lost && took != time.Minute {
				t.Errorf("receiver that fails %d times: Drain took %s, want a minute", failures, took)
			}
			if !lost && took > 5*time.Second {
				t.Errorf("receiver that fails %d times: Drain took %s, want at most 5 s", failures, took)
			}
		}
	})
}

// The deliveries that wait are bounded, in number and in bytes.
func TestWaitingDeliveriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log authtest.LogBuffer
		p := newProcess(t, Options{URL: target, Log: newLog(), Local: true, MaxBytes: 3000, Logger: log.Logger()})
		serveFake(p.Deliverer, map[string]http.Handler{"receiver.example": &receiver{t: t, answer: alwaysStatus(500)}})

		for range 20 {
			p.endRun("", answered)
		}

		<-time.After(75 * time.Second) // they were counted in the log, too
		synctest.Wait()
		page, err := p.Log.Runs(t.Context(), event.Filter{Owner: deliveryOwner})
		if n := int64(len(page.Runs)); err != nil || n < 2 || n > 10 || p.waitingTally().count != n || p.waitingTally().bytes > 3000 {
			t.Errorf("stored deliveries = %d, %v, counted %d with %d bytes; want few, of at most 3000 bytes", n, err, p.waitingTally().count, p.waitingTally().bytes)
		}
		if !strings.Contains(log.String(), "too many deliveries wait") {
			t.Errorf("log = %s, want what was given up", log.String())
		}
		p.stop()
	})
}

// While replicas are replaced, an older one may claim what only a newer one can read.
func TestDeliveryOfANewerVersionWaitsForANewerProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, Options{URL: target, Log: newLog(), Local: true})
		r := &receiver{t: t, answer: alwaysStatus(204)}
		serveFake(p.Deliverer, map[string]http.Handler{"receiver.example": r})
		id := idPrefix + "newer"
		if err := p.Log.Create(t.Context(), event.Run{ID: id, Owner: deliveryOwner, Created: p.Log.Now()}); err != nil {
			t.Fatal(err)
		}
		job, err := p.Log.CreateJob(t.Context(), id, fmt.Appendf(nil, `{"version":%d,"created":%d,"body":"in another form"}`, recordVersion+1, p.Log.Now().UnixMilli()))
		if err != nil {
			t.Fatal(err)
		}

		if err := job.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(lifetime - time.Hour)
		if _, err := p.Log.Run(t.Context(), id); err != nil {
			t.Errorf("after 23 hours: got %v, want the delivery in the log", err)
		}
		<-time.After(2 * time.Hour)
		if _, err := p.Log.Run(t.Context(), id); err == nil {
			t.Error("after 25 hours: got the delivery, want it given up")
		}
		if n := len(r.attempts()); n != 0 {
			t.Errorf("attempts = %d, want none", n)
		}
		p.stop()
	})
}
