package api

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"answerd/internal/api/responses"
	"answerd/internal/event"
	"answerd/internal/mcp/mcpserver"
)

// RFC 7240: what is not understood is ignored, and of two the first counts.
func TestPreferredWait(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  time.Duration
	}{
		{nil, 0},
		{[]string{"wait=5"}, 5 * time.Second},
		{[]string{"respond-async, Wait = \"5\""}, 5 * time.Second},
		{[]string{"respond-async", "wait=5; x=1"}, 5 * time.Second},
		{[]string{"wait=5, wait=9"}, 5 * time.Second},
		{[]string{"wait=x, wait=9"}, 0},
		{[]string{"wait"}, 0},
		{[]string{"wait=-5"}, 0},
		{[]string{"wait=0"}, 0},
		{[]string{"wait=2000000000"}, time.Hour},
		{[]string{"wait=99999999999999999999"}, 0},
		{[]string{"awaits=5"}, 0},
		{[]string{"\x00=;,,=5"}, 0},
	} {
		got, applied := preferredWait(&http.Request{Header: http.Header{"Prefer": c.lines}})
		if got != c.want || got > 0 && applied == "" {
			t.Errorf("%q: %s, %q", c.lines, got, applied)
		}
	}
}

// Behind a proxy a header could say anything, and one subscriber has 2^64 addresses.
func TestAnonymousCallersAreToldApartByTheirConnection(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[2001:db8::1]:80": "2001:db8::/64", "[2001:db8::2]:81": "2001:db8::/64", "[fe80::1%eth0]:80": "fe80::/64",
		"": "", "pipe": "",
	} {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {"198.51.100.1"}, "Forwarded": {"for=198.51.100.1"}}}
		if got := addressOf(r); got != want {
			t.Errorf("%s is %s, want %s", remote, got, want)
		}
	}
}

func TestReadersOfARunAreBounded(t *testing.T) {
	c := newCrowd()
	var leave func()
	for range maxReaders {
		l, full := c.read("run")
		if full != nil {
			t.Fatal(full)
		}
		leave = l
	}
	if _, full := c.read("run"); full == nil || full.Code != "rate_limited" {
		t.Errorf("one more: %v", full)
	}
	if _, full := c.read("other"); full != nil {
		t.Error(full)
	}
	leave()
	if _, full := c.read("run"); full != nil {
		t.Error(full)
	}
}

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

// short is the events of a run in short: ?a asks for an approval, !a is its answer, and |
// says that the run waits.
func short(text string) (events []event.Event) {
	for i, word := range strings.Fields(text) {
		e := event.Event{Seq: int64(i + 1)}
		switch word[0] {
		case '?':
			e.Body = event.ApprovalRequired{InterruptID: word[1:]}
		case '!':
			e.Body = event.ApprovalResolved{InterruptID: word[1:]}
		default:
			e.Body = event.Suspended{}
		}
		events = append(events, e)
	}
	return events
}

// Two approvals of one request may be taken one after the other, with a pause in between,
// or both at once; nobody who asks again later may see a difference.
func TestAResponseSpansTheApprovalsThatItAnswers(t *testing.T) {
	span := func(after, until int64) responses.Span { return responses.Span{After: after, Until: until} }
	for _, c := range []struct {
		events, approvals string
		want              responses.Span
	}{
		{"?a |", "a", span(2, 0)}, // not yet taken
		{"?a | !a", "a", span(2, 0)},
		{"?a | !a ?b | !b", "a", span(2, 0)},
		{"?a | !a ?b | !b", "b", span(5, 0)},
		{"?a ?b | !a !b", "a b", span(3, 0)},
		{"?a ?b | !a | !b", "a b", span(3, 6)},
		{"?a ?b | !a | !b", "a", span(3, 0)},
		{"?a ?b | !a | !b", "b", span(5, 0)},
		{"?a ?b ?c | !a | !b | !c ?d |", "c b a", span(4, 9)},
	} {
		var approvals []responses.Approval
		for _, name := range strings.Fields(c.approvals) {
			approvals = append(approvals, responses.Approval{Interrupt: name})
		}
		if got := answering(short(c.events), approvals); got != c.want {
			t.Errorf("%s, %s: %v, want %v", c.events, c.approvals, got, c.want)
		}
	}
	for _, c := range []struct {
		events string
		end    int64
		want   responses.Span
	}{
		{"?a |", 2, span(0, 0)},
		{"?a | !a ?b |", 5, span(2, 0)},
		{"?a ?b | !a | !b ?c |", 8, span(3, 6)},
		{"?a ?b | !a |", 5, span(3, 0)},
	} {
		if got := endingAt(short(c.events), c.end); got != c.want {
			t.Errorf("%s: %v, want %v", c.events, got, c.want)
		}
	}
}

// F32: a question to an MCP host is asked on a goroutine that is no request's.
func TestAPanicOverAQuestionToAHostIsLoggedAndNoMore(t *testing.T) {
	var said bytes.Buffer
	call := &toolCall{
		h:    &Handler{Options: Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}},
		call: &mcpserver.Call{SupportsForm: true, OpenStream: true}, // of no request: asking panics
	}
	call.ask(t.Context(), event.Event{RunID: "run_a", Body: event.ApprovalRequired{InterruptID: "int_1"}})
	call.asking.Wait()
	if !strings.Contains(said.String(), "ask an MCP host") {
		t.Errorf("the log: %s", said.String())
	}
}

// Whatever a caller prefers, nobody waits longer than we would, and what is said to have
// been applied is a header's value.
func FuzzPrefer(f *testing.F) {
	for _, s := range []string{"wait=10", "wait=\"10\"", "respond-async, wait=100", "wait=-1", "wait=99999999999", "WAIT = 5;a=b", "wait", "wait=1,wait=2", ",;=", "wait=\"", "wait=1\r\nX: y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		wait, preferred := preferredWait(&http.Request{Header: http.Header{"Prefer": {value}}})
		if wait < 0 || wait > longestWait || strings.ContainsAny(preferred, "\r\n\x00") || (preferred == "") && wait > 0 {
			t.Errorf("%q: %s %q", value, wait, preferred)
		}
	})
}

// Whoever calls is one of few by his address, whatever net/http says that it is.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"192.0.2.1:80", "[2001:db8::1]:80", "[fe80::1%eth0]:1", "@", "", "[::ffff:1.2.3.4]:1", "a:b:c", "[::1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, remote string) {
		if got := addressOf(&http.Request{RemoteAddr: remote}); len(got) > 50 {
			t.Errorf("%q is counted as %q", remote, got)
		}
	})
}
