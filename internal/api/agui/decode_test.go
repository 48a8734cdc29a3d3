package agui_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/api/agui"
	"answerd/internal/event"
)

const user = `{"id":"u","role":"user","content":"Where am I?"}`

// bodyWith returns a body with the members that it must have, and more.
func bodyWith(members string, messages ...string) string {
	return `{"threadId":"thread","runId":"run","state":{},"messages":[` + strings.Join(messages, ",") + `]` + members + `}`
}

func TestDecode(t *testing.T) {
	const call = `{"id":"a","role":"assistant","toolCalls":[{"id":"c1","type":"function","function":{"name":"locate","arguments":"{}"}}]}`
	for name, c := range map[string]struct{ body, want string }{
		"0.x":             {bodyWith(`,"tools":[],"context":[],"forwardedProps":{}`, user), `q="Where am I?"`},
		"1.0":             {bodyWith(`,"protocolVersion":"1.0"`, user), `q="Where am I?" v1`},
		"parts":           {bodyWith("", `{"role":"user","content":[{"type":"text","text":"Who"},{"type":"image","source":{"type":"url","value":"https://x.example/a.png"}},{"type":"text","text":"is it?"}]}`), `q="Who\nis it?" media=1`},
		"provider's file": {bodyWith("", `{"role":"user","content":[{"type":"text","text":"Who is it?"},{"type":"image","source":{"type":"file","value":"file-1","provider":"openai"}}]}`), `q="Who is it?"`},
		"binary":          {bodyWith("", `{"role":"user","content":[{"type":"binary","mimeType":"image/png","url":"https://x.example/a.png"}]}`), `q="" media=1`},
		"a conversation":  {bodyWith("", user, `{"role":"assistant","content":"Rome."}`, `{"role":"activity","content":{"x":1}}`, `{"role":"reasoning","content":"hm"}`, user), `q="Where am I?" [user:"Where am I?"] [assistant:"Rome."]`},
		"a tool's result": {bodyWith("", user, call, `{"role":"tool","toolCallId":"c1","content":"Rome"}`), `q="" [user:"Where am I?"] [assistant:"" c1=locate({})] [tool:"Rome" c1]`},
		"its failure":     {bodyWith("", user, call, `{"role":"tool","toolCallId":"c1","content":"","error":"denied"}`), `q="" [user:"Where am I?"] [assistant:"" c1=locate({})] [tool:"Error: denied" c1]`},
		"context":         {bodyWith(`,"context":[{"description":"Page","value":"home"}]`, `{"role":"developer","content":"Be brief."}`, user), `q="Where am I?" instructions="Be brief.\n\nPage:\nhome"`},
		"tools":           {bodyWith(`,"tools":[{"name":"locate","description":"d","parameters":{"type":"object"}},{"name":"b","description":""}]`, user), `q="Where am I?" tool=locate tool=b`},
		"options":         {bodyWith(`,"forwardedProps":{"answerd":{"max_turns":1}}`, user), `q="Where am I?" options={"max_turns":1}`},
		"odd properties":  {bodyWith(`,"forwardedProps":[1]`, user), `q="Where am I?"`},
		"resume":          {bodyWith(`,"resume":[{"interruptId":"int_1","status":"resolved","payload":{"approved":true}},{"interruptId":"int_2","status":"cancelled"}]`, user), `q="" [user:"Where am I?"] int_1={"approved":true} int_2 cancelled`},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := agui.Decode([]byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if q.ThreadID != "thread" || q.RunID != "run" || !q.Interactive {
				t.Errorf("request %+v, want ThreadID thread, RunID run, Interactive true", q)
			}
			if got := describeRequest(q); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// describeRequest returns in one line what was decoded.
func describeRequest(q agui.Request) string {
	out := fmt.Sprintf("q=%q", q.Question)
	if len(q.Media) > 0 {
		out += fmt.Sprintf(" media=%d", len(q.Media))
	}
	if q.V1 {
		out += " v1"
	}
	if q.Instructions != "" {
		out += fmt.Sprintf(" instructions=%q", q.Instructions)
	}
	for _, m := range q.History {
		out += " [" + m.Role + fmt.Sprintf(":%q", m.Content)
		for _, c := range m.Calls {
			out += " " + c.ID + "=" + c.Name + "(" + c.Arguments + ")"
		}
		out = strings.TrimRight(out+" "+m.CallID, " ") + "]"
	}
	for _, c := range q.ClientTools {
		out += " tool=" + c.Name
	}
	for _, a := range q.Answers {
		out += " " + a.ID
		if a.Cancelled {
			out += " cancelled"
			continue
		}
		out += "=" + string(a.Payload)
	}
	if q.Options != nil {
		out += " options=" + string(q.Options)
	}
	return out
}

func TestAnswerMustFitTheKindOfItsInterrupt(t *testing.T) {
	for _, c := range []struct{ status, kind, want string }{
		{`"status":"resolved","payload":{"approved":true,"editedArgs":{"a":2}}`, event.KindApproval, `yes "" {"a":2}`},
		{`"status":"resolved","payload":{"approved":false,"reason":"not that","editedArgs":null}`, event.KindApproval, `no "not that" `},
		{`"status":"resolved","payload":{"approved":true,"reason":"` + strings.Repeat("é", 600) + `"}`, event.KindApproval, `yes "` + strings.Repeat("é", 512) + `" `},
		{`"status":"cancelled"`, event.KindApproval, `no "" `},
		{`"status":"resolved","payload":{}`, event.KindApproval, `refused`},
		{`"status":"resolved","payload":true`, event.KindApproval, `refused`},
		{`"status":"resolved"`, event.KindApproval, `refused`},
		{`"status":"resolved","payload":{"approved":true,"max":16}`, event.KindBudget, `yes "" {"max":16}`},
		{`"status":"resolved","payload":{"approved":true,"editedArgs":{"a":2}}`, event.KindBudget, `yes "" `},
		{`"status":"resolved","payload":{"approved":false,"reason":"enough"}`, event.KindBudget, `no "enough" `},
		{`"status":"resolved","payload":{"max":16}`, event.KindBudget, `refused`},
		{`"status":"cancelled"`, event.KindBudget, `no "" `},
		{`"status":"resolved","payload":{"people":2}`, event.KindElicitation, `accept {"people":2}`},
		{`"status":"resolved","payload":null`, event.KindElicitation, `accept `},
		{`"status":"cancelled","payload":{"people":2}`, event.KindElicitation, `cancel `},
	} {
		q, err := agui.Decode([]byte(bodyWith(`,"resume":[{"interruptId":"int_1",` + c.status + `}]`)))
		if err != nil {
			t.Fatal(err)
		}
		in, err := q.Answers[0].InputFor(c.kind)
		var bad *agui.Invalid
		if errors.As(err, &bad) && bad.Field != "resume[0].payload" {
			t.Errorf("bad %v, want Field resume[0].payload", bad)
		}
		if got := describeInput(in, err); got != c.want || in.ID != "int_1" {
			t.Errorf("%s to %s: %s, ID %q, want %s and int_1", c.status, c.kind, got, in.ID, c.want)
		}
	}
}

func describeInput(in agent.Input, err error) string {
	switch {
	case err != nil:
		return "refused"
	case in.Approved == nil:
		return in.Action + " " + string(in.Content)
	case *in.Approved:
		return fmt.Sprintf("yes %q %s", in.Reason, in.Args)
	}
	return fmt.Sprintf("no %q %s", in.Reason, in.Args)
}

// invalidBodies are bodies that are refused, and the field that the error names.
var invalidBodies = map[string]string{
	`x`: "", `[]`: "", "{\"threadId\":\"\xff\"}": "", `null`: "threadId", `{}`: "threadId",
	`{"threadId":"a\u0000"}`:                                                     "threadId",
	`{"threadId":"t"}`:                                                           "runId",
	`{"threadId":"t","runId":"r"}`:                                               "messages",
	`{"threadId":"t","runId":7}`:                                                 "runId",
	bodyWith(`,"tools":{}`, user):                                                "tools",
	bodyWith(`,"tools":[{"name":""}]`):                                           "tools[0].name",
	bodyWith("", `{"role":"x"}`):                                                 "messages[0].role",
	bodyWith("", `{"role":"user","content":7}`):                                  "messages[0].content",
	bodyWith("", `{"role":"user","content":" "}`):                                "messages",
	bodyWith("", user, `{"role":"assistant","content":"Rome."}`):                 "messages",
	bodyWith("", `{"role":"tool","content":"x"}`):                                "messages[0].toolCallId",
	bodyWith("", `{"role":"assistant","toolCalls":[{"function":{"name":"a"}}]}`): "messages[0].toolCalls[0].id",
	bodyWith("", `{"role":"assistant","toolCalls":[{"id":"c"}]}`):                "messages[0].toolCalls[0].function.name",
	bodyWith("", `{"role":"user","content":[{"type":"video"}]}`):                 "messages[0].content[0]",
	bodyWith("", strings.Repeat(user+",", 1024)+user):                            "messages",
	bodyWith(`,"context":[`+strings.Repeat(`{},`, 128)+`{}]`, user):              "context",
	bodyWith(`,"tools":[{"name":"a"},{"name":"a"}]`, user):                       "tools[1].name",
	bodyWith(`,"tools":[{"name":"a","parameters":true}]`, user):                  "tools[0].parameters",
	bodyWith(`,"resume":[{"status":"resolved"}]`):                                "resume[0].interruptId",
	bodyWith(`,"resume":[{"interruptId":"i"}]`):                                  "resume[0].status",
	bodyWith(`,"resume":[{"interruptId":"i","status":"cancelled"},{"interruptId":"i","status":"cancelled"}]`): "resume[1].interruptId",
}

func TestBadBodyIsRefusedByTheNameOfItsField(t *testing.T) {
	for body, field := range invalidBodies {
		_, err := agui.Decode([]byte(body))
		var bad *agui.Invalid
		if !errors.As(err, &bad) || bad.Field != field || bad.Message == "" {
			t.Errorf("%.120s: %v, want an Invalid, Field %q, Message non-empty", body, err, field)
		}
	}
}

// FuzzDecode holds Decode to its promise: an *Invalid, or a request that the agent can
// take, whose answers are answers to something.
func FuzzDecode(f *testing.F) {
	for body := range invalidBodies {
		if len(body) < 4096 {
			f.Add([]byte(body))
		}
	}
	f.Add([]byte(bodyWith("", user)))
	f.Add([]byte(bodyWith(`,"resume":[{"interruptId":"i","status":"resolved","payload":{"approved":true,"editedArgs":{}}}]`)))
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := agui.Decode(body)
		var bad *agui.Invalid
		switch {
		case err != nil && !errors.As(err, &bad):
			t.Fatalf("error %T, want *Invalid", err)
		case err != nil:
			return
		case q.ThreadID == "" || q.RunID == "":
			t.Fatalf("thread %q, run %q, want both IDs", q.ThreadID, q.RunID)
		case len(q.Answers) == 0 && strings.TrimSpace(q.Question) == "" && len(q.Media) == 0 && q.History[len(q.History)-1].Role != "tool":
			t.Fatalf("request %+v, want a question, answers, media or tool results", q)
		}
		for _, a := range q.Answers {
			if in, err := a.InputFor(event.KindApproval); err == nil && in.Approved == nil {
				t.Fatal("no decision, want Approved non-nil")
			}
			if in, err := a.InputFor(event.KindElicitation); err != nil || in.Action == "" {
				t.Fatalf("no action: Action %q, want Action non-empty, no error", in.Action)
			}
		}
	})
}
