package native_test

import (
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"answerd/internal/api/native"
	"answerd/internal/event"
)

// Each text that is accepted as a position is the id that a frame of that event would have.
func FuzzPosition(f *testing.F) {
	for _, id := range []string{"run_a:1", "run_a:0", "run_a:-1", "run_a:+1", "run_a:01", "a:b:2", ":1", "run_a:", "run_a", "run_a:9223372036854775807", "run_a:9223372036854775808", "run_\xff:1", "r:1 "} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		run, seq, ok := native.ParsePosition(id)
		if !ok {
			return
		}
		number := strings.TrimLeft(id[len(run)+1:], "0")
		want := strings.TrimPrefix(native.EventID(event.Event{RunID: run, Seq: seq}), run+":")
		if seq < 0 || number != strings.TrimLeft(want, "0") && seq != 0 {
			t.Errorf("%q is %q after %s, want the ID of that event", id, run, strconv.FormatInt(seq, 10))
		}
	})
}

func FuzzQuery(f *testing.F) {
	for _, q := range []string{"question=a", "question=a&servers=crm&servers=b&tools=a*&max_turns=2&budget.seconds=1.5", "question=%ff", "question=a%00", "question=", "question=a&question=b", "thread_id=t&question=a&model=m&tool_choice=none", "background=true&question=a", "context=x", "budget=%7B%22seconds%22%3A1%7D&question=a"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		r, _, err := native.DecodeQuery(q)
		if err != nil {
			return
		}
		if strings.TrimSpace(r.Question) == "" || !utf8.ValidString(r.Question) || strings.ContainsRune(r.Question, 0) || r.MaxTurns < 0 {
			t.Errorf("%q becomes %+v, want a question in UTF-8, without NUL, MaxTurns not negative", raw, r)
		}
	})
}

func FuzzInput(f *testing.F) {
	for _, body := range []string{`{"id":"int_a","approved":true,"reason":"r","args":{"a":1}}`, `{"id":"int_a","action":"accept","content":{"a":[]}}`, `{"id":"int_a","action":"decline"}`, `{"id":"","approved":false}`, `{"id":"int_a","approved":true,"action":"accept"}`, `{"id":"a","approved":null}`, `{"id":"a","id":"b","approved":true}`, `[]`, `{"id":"\ud800","action":"cancel"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if in, err := native.DecodeInput(body); err == nil && (in.ID == "" || !utf8.Valid(body)) {
			t.Errorf("%q becomes %+v, want an ID, of UTF-8 only", body, in)
		}
	})
}

func FuzzToolCall(f *testing.F) {
	for _, body := range []string{`{}`, `{"args":{"a":1},"context":{"k":"v"},"approved":true}`, `{"args":[]}`, `{"args":null}`, `{"args":{"a":1,"a":2}}`, `{"context":{"k":1}}`, `{"args":{}}x`, `{"Args":{}}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		call, err := native.DecodeToolCall(body)
		if err == nil && (!utf8.Valid(body) || len(call.Args) > 0 && call.Args[0] != '{') {
			t.Errorf("%q becomes %+v, want an object as args, of UTF-8 only", body, call)
		}
	})
}
