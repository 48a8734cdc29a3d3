package native_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/api/native"
)

func TestOptionsAddWhatAnotherFormatLacks(t *testing.T) {
	r := agent.Request{Question: "?", Servers: []string{"a"}, ThreadID: "thr_1", Budget: agent.Budget{ToolCalls: 3}}
	err := native.DecodeOptions(json.RawMessage(`{"servers":["b"],"tools":["x_*"],"max_turns":2,"budget":{"seconds":9},"context":{"k":"v"},
		"prompt":{"server":"b","name":"p"},"thread_id":"thr_2"}`), &r)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(r.Question, r.Servers, r.Tools, r.MaxTurns, r.Budget, r.Context, *r.Prompt, r.ThreadID)
	if want := `?[a b] [x_*] 2 {3 0 0 0 9 0 0} map[k:v] {b p map[]}thr_2`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	before := r
	if err := native.DecodeOptions(nil, &r); err != nil || fmt.Sprint(r) != fmt.Sprint(before) {
		t.Errorf("nothing: %v, %+v, want %q and no error", err, r, fmt.Sprint(before))
	}
}

func TestBadOptionsAreRefusedBelowTheirName(t *testing.T) {
	for body, pointer := range map[string]string{
		`5`: "/answerd", `null`: "/answerd", `[]`: "/answerd", `{"nope":1}`: "/answerd/nope", `{"question":"x"}`: "/answerd/question",
		`{"max_turns":0}`: "/answerd/max_turns", `{"servers":"a"}`: "/answerd/servers", `{"servers":[""]}`: "/answerd/servers/0",
		`{"budget":{"cost":-1}}`: "/answerd/budget/cost", `{"budget":5}`: "/answerd/budget", `{"context":{"k":1}}`: "/answerd/context/k",
		`{"prompt":{}}`: "/answerd/prompt/name", `{"thread_id":"a b"}`: "/answerd/thread_id", `{"max_turns":1,"max_turns":2}`: "/answerd/max_turns",
		`{"context":{"a":` + strings.Repeat(`[`, 40) + strings.Repeat(`]`, 40) + `}}`: "/answerd/context/a",
	} {
		err := native.DecodeOptions(json.RawMessage(body), &agent.Request{})
		bad, ok := errors.AsType[*native.Invalid](err)
		if !ok || !strings.HasPrefix(bad.Errors[0].Pointer, pointer) {
			t.Errorf("%.60s: %v, want an Invalid, Errors[0].Pointer starting with %q", body, err, pointer)
		}
	}
}
