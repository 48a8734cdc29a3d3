package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/api/responses"
	"answerd/internal/auth"
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
			t.Errorf("%q: %s, %q, want %s, and what is applied", c.lines, got, applied, c.want)
		}
	}
}

// Behind a proxy a header could say anything, and one subscriber has 2^64 addresses.
func TestClientAddressIgnoresForwardedHeaders(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[2001:db8::1]:80": "2001:db8::/64", "[2001:db8::2]:81": "2001:db8::/64", "[fe80::1%eth0]:80": "fe80::/64",
		"": "", "pipe": "",
	} {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {"198.51.100.1"}, "Forwarded": {"for=198.51.100.1"}}}
		if got := clientAddress(r); got != want {
			t.Errorf("clientAddress(%s) = %s, want %s", remote, got, want)
		}
	}
}

func TestStreamLimiterBoundsTheReadersOfARun(t *testing.T) {
	l := newStreamLimiter()
	var release func()
	for n := range maxReaders {
		var refused *problem
		if release, refused = l.acquireReader("run"); refused != nil {
			t.Fatalf("reader %d: got %v, want no problem", n, refused)
		}
	}

	if _, got := l.acquireReader("run"); got == nil || got.Code != "rate_limited" {
		t.Errorf("reader %d: got %v, want rate_limited", maxReaders, got)
	}
	if _, got := l.acquireReader("other"); got != nil {
		t.Errorf("reader of another run: got %v, want no problem", got)
	}
	release()
	if _, got := l.acquireReader("run"); got != nil {
		t.Errorf("reader after another left: got %v, want no problem", got)
	}
}

func TestDeliveryTrackerKnowsWhoMissedTheEnd(t *testing.T) {
	var tracker deliveryTracker
	now := time.UnixMilli(1_795_000_000_000)
	endedRun := func(id string, end event.Body, ago time.Duration) event.Run {
		return event.Run{ID: id, Last: event.Event{Seq: 9, Time: now.Add(-ago).UnixMilli(), Body: end}}
	}
	tracker.setDelivered("cut", false)
	tracker.setDelivered("delivered", false)
	tracker.setDelivered("delivered", true)

	for _, c := range []struct {
		run  event.Run
		want bool
	}{
		{endedRun("cut", event.FinalAnswer{}, time.Hour), true},
		{endedRun("cut", event.Cancelled{}, 0), true},
		{endedRun("delivered", event.FinalAnswer{}, 0), false},
		{endedRun("unknown", event.FinalAnswer{}, redeliveryTime-time.Millisecond), true},
		{endedRun("unknown", event.RunError{}, 0), true},
		{endedRun("unknown", event.FinalAnswer{}, redeliveryTime), false},
		{endedRun("unknown", event.Cancelled{}, 0), false},
	} {
		if got := tracker.missedEnd(c.run, now); got != c.want {
			t.Errorf("missedEnd(%+v) = %t, want %t", c.run, got, c.want)
		}
	}
}

func TestDeliveryTrackerDropsTheOldestRun(t *testing.T) {
	var tracker deliveryTracker
	for i := range maxTracked + 2 {
		tracker.setDelivered(fmt.Sprint(i), false)
	}

	missed := func(id string) bool {
		return tracker.missedEnd(event.Run{ID: id, Last: event.Event{Body: event.FinalAnswer{}}}, time.Now())
	}
	tracker.setDelivered("5", false) // now the newest
	if got := len(tracker.records); got != maxTracked {
		t.Errorf("got %d records, want %d", got, maxTracked)
	}

	for id, want := range map[string]bool{"0": false, "1": false, "2": true, fmt.Sprint(maxTracked + 1): true} {
		if got := missed(id); got != want {
			t.Errorf("missedEnd of run %s: got %t, want %t", id, got, want)
		}
	}

	tracker.setDelivered("more", false)
	if missed("2") || !missed("5") {
		t.Errorf("after one more run: got missedEnd %t for run 2 and %t for run 5, want false and true", missed("2"), missed("5"))
	}
}

// parseEvents returns the events that text abbreviates: ?a asks for an approval, !a is its answer, and |
// says that the run waits.
func parseEvents(text string) (events []event.Event) {
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

// Two approvals of one request may be given one after the other, with a pause in between, or both
// at once. A later reader sees no difference.
func TestResponseSpanCoversItsApprovals(t *testing.T) {
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
		if got := spanAnswering(parseEvents(c.events), approvals); got != c.want {
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
		if got := spanEndingAt(parseEvents(c.events), c.end); got != c.want {
			t.Errorf("%s: %v, want %v", c.events, got, c.want)
		}
	}
}

// The goroutine of an elicitation serves no request, so nothing else would recover its panic (F32).
func TestElicitationLogsAPanic(t *testing.T) {
	var log bytes.Buffer
	call := &answerCall{
		h:    &Handler{Options: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}},
		call: &mcpserver.Call{SupportsForm: true, OpenStream: true}, // it has no request, so Elicit panics
	}
	call.updateElicitations(t.Context(), event.Event{RunID: "run_a", Body: event.ApprovalRequired{InterruptID: "int_1"}})
	call.elicitations.Wait()
	if got, want := log.String(), "elicit input from an MCP client"; !strings.Contains(got, want) {
		t.Errorf("log: got %q, want %q in it", got, want)
	}
}

// The wait is bounded, and the applied preference is a valid header value.
func FuzzPreferredWait(f *testing.F) {
	for _, s := range []string{"wait=10", "wait=\"10\"", "respond-async, wait=100", "wait=-1", "wait=99999999999", "WAIT = 5;a=b", "wait", "wait=1,wait=2", ",;=", "wait=\"", "wait=1\r\nX: y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		wait, preferred := preferredWait(&http.Request{Header: http.Header{"Prefer": {value}}})
		if wait < 0 || wait > maxWait || strings.ContainsAny(preferred, "\r\n\x00") || (preferred == "") && wait > 0 {
			t.Errorf("preferredWait(%q) = %s, %q; want at most %s and a header value", value, wait, preferred, maxWait)
		}
	})
}

// The address of a caller is short, whatever net/http says that it is.
func FuzzClientAddress(f *testing.F) {
	for _, s := range []string{"192.0.2.1:80", "[2001:db8::1]:80", "[fe80::1%eth0]:1", "@", "", "[::ffff:1.2.3.4]:1", "a:b:c", "[::1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, remote string) {
		if got := clientAddress(&http.Request{RemoteAddr: remote}); len(got) > 50 {
			t.Errorf("clientAddress(%q) = %q, want at most 50 bytes", remote, got)
		}
	})
}

// TestProblemsOfUpstreamsSayWhatToDoNext goes over the problems that a service which answerd needs causes:
// MCP servers, the issuer of callers' tokens and the event log.
func TestProblemsOfUpstreamsSayWhatToDoNext(t *testing.T) {
	step := regexp.MustCompile(`\. (Ask|Try|Get|Its operator|The WWW-Authenticate header) `)
	failures := []error{
		&agent.ToolsUnavailableError{Servers: []string{"crm"}}, event.ErrUnavailable, event.ErrLost, agent.ErrDraining, fmt.Errorf("a defect"),
	}
	for _, err := range []error{auth.ErrNoToken, auth.ErrInvalidToken, auth.ErrKeysUnavailable, &auth.ScopeError{Required: "ask"}} {
		failures = append(failures, authProblem(err, "https://answerd.example.com/.well-known/oauth-protected-resource"))
	}
	for _, err := range failures {
		if p, _ := problemFor(err); !step.MatchString(p.Detail + " ") {
			t.Errorf("%v: got %q, want a next step after the first sentence", err, p.Detail)
		}
	}
}

// The member "answerd" takes those fields of a question that its document lists, and no others.
func TestOptionsHaveTheFieldsThatAreRead(t *testing.T) {
	read := make(object)
	for name := range document().flatten(componentRef("Question"))["properties"].(object) {
		body, err := json.Marshal(object{name: nil})
		if err != nil {
			t.Fatal(err)
		}
		if err := native.DecodeOptions(body, &agent.Request{}); err == nil || !strings.Contains(err.Error(), "unknown field") {
			read[name] = nil
		}
	}
	schemas := documents()["openapi/openai.yaml"]["components"].(object)["schemas"].(object)
	checkSameKeys(t, "Options", read, schemas["Options"].(object)["properties"].(object))
}
