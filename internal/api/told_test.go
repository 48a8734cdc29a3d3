package api

import (
	"fmt"
	"testing"
	"time"

	"answerd/internal/event"
)

func TestWhoMissedAnEndIsRemembered(t *testing.T) {
	var runs told
	now := time.UnixMilli(1_795_000_000_000)
	run := func(id string, end event.Body, ago time.Duration) event.Run {
		return event.Run{ID: id, Last: event.Event{Seq: 9, Time: now.Add(-ago).UnixMilli(), Body: end}}
	}
	runs.set("cut", false)
	runs.set("whole", false)
	runs.set("whole", true)
	for _, c := range []struct {
		run    event.Run
		missed bool
	}{
		{run("cut", event.FinalAnswer{}, time.Hour), true},
		{run("cut", event.Cancelled{}, 0), true},
		{run("whole", event.FinalAnswer{}, 0), false},
		{run("elsewhere", event.FinalAnswer{}, recently-time.Millisecond), true},
		{run("elsewhere", event.RunError{}, 0), true},
		{run("elsewhere", event.FinalAnswer{}, recently), false},
		{run("elsewhere", event.Cancelled{}, 0), false},
	} {
		if got := runs.missed(c.run, now); got != c.missed {
			t.Errorf("%+v: %t", c.run, got)
		}
	}
}

func TestTheRunsThatWereToldAreBounded(t *testing.T) {
	var runs told
	for i := range maxTold + 2 {
		runs.set(fmt.Sprint(i), false)
	}
	missed := func(id string) bool {
		return runs.missed(event.Run{ID: id, Last: event.Event{Body: event.FinalAnswer{}}}, time.Now())
	}
	runs.set("5", false) // as new as the newest
	if len(runs.runs) != maxTold || len(runs.whole) != maxTold || missed("0") || missed("1") || !missed("2") || !missed(fmt.Sprint(maxTold+1)) {
		t.Errorf("%d are kept", len(runs.runs))
	}
	runs.set("more", false)
	if missed("2") || !missed("5") {
		t.Error("not the oldest one is given up")
	}
}
