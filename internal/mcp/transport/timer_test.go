package transport

import (
	"testing"
	"testing/synctest"
	"time"
)

// Silence expires the timer, each message puts that off, and nothing puts off the deadline. While the
// timer is paused both stand still.
func TestIdleTimerExpires(t *testing.T) {
	for name, play := range map[string]struct {
		live func(*idleTimer)
		want time.Duration
	}{
		"silent from the start": {func(*idleTimer) {}, 5 * time.Second},
		"a sign of life":        {func(l *idleTimer) { <-time.After(4 * time.Second); l.noteActivity() }, 9 * time.Second},
		"signs without end": {func(l *idleTimer) {
			for range 100 {
				<-time.After(time.Second)
				l.noteActivity()
			}
		}, 20 * time.Second},
		"a person in between": {func(l *idleTimer) {
			<-time.After(4 * time.Second)
			l.PauseTimer()
			<-time.After(time.Hour)
			l.ResumeTimer()
		}, time.Hour + 9*time.Second},
		"a person, and signs without end": {func(l *idleTimer) {
			l.PauseTimer()
			<-time.After(time.Hour)
			l.ResumeTimer()
			for range 100 {
				<-time.After(time.Second)
				l.noteActivity()
			}
		}, time.Hour + 20*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				over := make(chan time.Duration, 2)
				var l idleTimer
				l.start(began.Add(20*time.Second), func() { over <- time.Since(began) })
				l.SetIdleTimeout(5 * time.Second)
				play.live(&l)
				if took := <-over; took != play.want {
					t.Errorf("expired after %s, want %s", took, play.want)
				}
				l.stop()
			})
		})
	}
}

func TestIdleTimerKeepsItsTimeWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		over := make(chan time.Duration, 1)
		var l idleTimer
		l.start(began.Add(10*time.Second), func() { over <- time.Since(began) })
		<-time.After(4 * time.Second)
		l.PauseTimer()
		<-time.After(time.Hour)
		l.ResumeTimer()
		if took := <-over; took != time.Hour+10*time.Second {
			t.Errorf("expired after %s, want %s", took, time.Hour+10*time.Second)
		}
		l.PauseTimer() // too late: it does not start again
		l.ResumeTimer()
		l.stop()
		<-time.After(time.Hour)
		if len(over) != 0 {
			t.Error("got it expired twice, want once")
		}
	})
}
