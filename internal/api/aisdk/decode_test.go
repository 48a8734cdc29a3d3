package aisdk_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/thread"
	"answerd/internal/api/aisdk"
)

const user = `{"id":"u1","role":"user","parts":[{"type":"text","text":"Where am I?"}]}`

func chatBody(messages ...string) string {
	return `{"id":"chat-1","trigger":"submit-message","messages":[` + strings.Join(messages, ",") + `]}`
}

func assistantMessage(parts string) string {
	return `{"id":"msg_1","role":"assistant","metadata":{"runId":"run_1"},"parts":[` + parts + `]}`
}

// TestDecode shows what the agent is asked by the bodies that the SDK sends.
func TestDecode(t *testing.T) {
	const (
		located = `{"type":"step-start"},{"type":"text","text":"Let me look."},{"type":"tool-locate","toolCallId":"c1","state":"output-available","input":{"exact":true},"output":{"city":"Rome"}}`
		added   = `{"type":"dynamic-tool","toolName":"add","toolCallId":"c2","providerExecuted":true,"state":"output-available","input":{},"output":3}`
		asked   = `{"type":"dynamic-tool","toolName":"delete","toolCallId":"c3","providerExecuted":true,"state":"approval-responded","input":{},"approval":{"id":"int_1","approved":false,"reason":"no"}}`
		form    = `{"type":"dynamic-tool","toolName":"elicitation","toolCallId":"int_2","state":"output-available","input":{},"output":{"action":"accept","content":{"people":2}}}`
		old     = `{"type":"dynamic-tool","toolName":"elicitation","toolCallId":"int_0","providerExecuted":true,"state":"output-available","input":{},"output":{"action":"accept"}}`
	)
	for name, c := range map[string]struct{ body, want string }{
		"a question": {chatBody(user), `{"question":"Where am I?"}`},
		"what was said before, by steps": {chatBody(user, assistantMessage(located+","+added+`,{"type":"step-start"},{"type":"reasoning","text":"hm"},{"type":"text","text":"Rome."}`), user),
			`{"question":"Where am I?","history":["user: Where am I?","assistant: Let me look. c1=locate({\"exact\":true})","tool c1: {\"city\":\"Rome\"}","assistant: Rome."]}`},
		"system":             {chatBody(`{"id":"s","role":"system","parts":[{"type":"text","text":"Be brief."}]}`, user), `{"question":"Where am I?","instructions":"Be brief."}`},
		"system, and a text": {`{"id":"c","system":"Be kind.","messages":[` + user + `]}`, `{"question":"Where am I?","instructions":"Be kind."}`},
		"a picture":          {chatBody(`{"id":"u","role":"user","parts":[{"type":"file","mediaType":"image/png","url":"https://x.example/a.png"}]}`), `{"media":1}`},
		"tools":              {`{"id":"c","tools":[{"name":"locate","description":"d","parameters":{"type":"object"}},{"name":"b"}],"messages":[` + user + `]}`, `{"question":"Where am I?","tools":["locate","b"]}`},
		"tools by name":      {`{"id":"c","tools":{"locate":{"parameters":{"type":"object"}},"b":{}},"messages":[` + user + `]}`, `{"question":"Where am I?","tools":["b","locate"]}`},
		"a client tool's result": {chatBody(user, assistantMessage(located)),
			`{"message":"msg_1","history":["user: Where am I?","assistant: Let me look. c1=locate({\"exact\":true})","tool c1: {\"city\":\"Rome\"}"]}`},
		"a client tool's failure": {chatBody(user, assistantMessage(`{"type":"tool-locate","toolCallId":"c1","state":"output-error","input":{},"errorText":"denied"}`)),
			`{"message":"msg_1","history":["user: Where am I?","assistant:  c1=locate({})","tool c1: Error: denied"]}`},
		"a client tool's arguments that are not a JSON object": {chatBody(user, assistantMessage(`{"type":"tool-locate","toolCallId":"c1","state":"output-error","rawInput":"{\"ex","errorText":"bad"}`)),
			`{"message":"msg_1","history":["user: Where am I?","assistant:  c1=locate({\"ex)","tool c1: Error: bad"]}`},
		"answers": {chatBody(user, assistantMessage(asked+","+old+","+form)),
			`{"message":"msg_1","history":["user: Where am I?"],"answers":["int_1 false no","int_2 accept {\"people\":2}"]}`},
		"an answer to an earlier message": {`{"id":"c","messageId":"msg_1","messages":[` + assistantMessage(asked) + "," + user + `]}`,
			`{"message":"msg_1","history":["user: Where am I?"],"answers":["int_1 false no"]}`},
		"an edited question": {`{"id":"c","messageId":"u1","messages":[` + user + `]}`, `{"question":"Where am I?"}`},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := aisdk.Decode([]byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if !q.Interactive || q.ApprovalsDeclined || q.ThreadID == "" {
				t.Errorf("request %+v, ThreadID %q, want Interactive true, ApprovalsDeclined false, ThreadID non-empty", q.Request, q.ThreadID)
			}
			if got := describeRequest(t, q); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// describeRequest returns in one line what was decoded.
func describeRequest(t *testing.T, q aisdk.Request) string {
	t.Helper()
	var s struct {
		Question     string   `json:"question,omitempty"`
		Media        int      `json:"media,omitempty"`
		Instructions string   `json:"instructions,omitempty"`
		Message      string   `json:"message,omitempty"`
		History      []string `json:"history,omitempty"`
		Answers      []string `json:"answers,omitempty"`
		Tools        []string `json:"tools,omitempty"`
	}
	s.Question, s.Media, s.Instructions, s.Message = q.Question, len(q.Media), q.Instructions, q.MessageID
	for _, m := range q.History {
		s.History = append(s.History, describeMessage(m))
	}
	for _, a := range q.Answers {
		if a.Approved != nil {
			b, _ := json.Marshal(*a.Approved)
			s.Answers = append(s.Answers, a.ID+" "+string(b)+" "+a.Reason)
			continue
		}
		s.Answers = append(s.Answers, a.ID+" "+a.Action+" "+string(a.Content))
	}
	for _, tool := range q.ClientTools {
		s.Tools = append(s.Tools, tool.Name)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func describeMessage(m agent.Message) string {
	out := m.Role
	if m.CallID != "" {
		out += " " + m.CallID
	}
	out += ": " + m.Content
	for _, c := range m.Calls {
		out += " " + c.ID + "=" + c.Name + "(" + c.Arguments + ")"
	}
	return out
}

func TestPageCanSayThatItCannotAskForApprovals(t *testing.T) {
	q, err := aisdk.Decode([]byte(`{"id":"c","approvals":false,"messages":[` + user + `]}`))
	if err != nil || !q.ApprovalsDeclined {
		t.Errorf("request %+v, %v, want ApprovalsDeclined true, no error", q.Request, err)
	}
}

// invalidBodies are bodies that are refused, and the field that the error names.
var invalidBodies = map[string]string{
	`x`: "", `null`: "id", `[]`: "", `{"id":"c","messages":[` + user + `]}x`: "", "{\"id\":\"\xff\"}": "",
	`{"id":7}`:                   "id",
	`{"id":"a b","messages":[]}`: "id",
	`{"id":"` + strings.Repeat("x", 129) + `"}`: "id",
	`{"id":"c"}`:               "messages",
	`{"id":"c","messages":{}}`: "messages",
	`{"id":"c","messages":[{"parts":[{"text":1}]}]}`:                                                    "messages[0].parts[0].text",
	`{"id":"c","messages":[{"role":"tool"}]}`:                                                           "messages[0].role",
	`{"id":"c","messages":[{"role":"user"}]}`:                                                           "messages",
	`{"id":"c","messages":[{"role":"system"}]}`:                                                         "messages",
	chatBody(user, assistantMessage("")):                                                                "messages",
	chatBody(user, `{"role":"assistant","parts":[]}`):                                                   "messages[1].id",
	chatBody(strings.Repeat(user+",", 1024) + user):                                                     "messages",
	`{"id":"c","tools":7}`:                                                                              "tools",
	`{"id":"c","tools":[{"name":"a b"}],"messages":[1]}`:                                                "messages[0]",
	`{"id":"c","tools":[{"name":"a b"}],"messages":[` + user + `]}`:                                     "tools[0].name",
	`{"id":"c","tools":[{"name":"elicitation"}],"messages":[` + user + `]}`:                             "tools[0].name",
	`{"id":"c","tools":[{"name":"a"},{"name":"a"}],"messages":[` + user + `]}`:                          "tools[1].name",
	`{"id":"c","tools":[{"name":"a","parameters":[]}],"messages":[` + user + `]}`:                       "tools[0].parameters",
	chatBody(`{"id":"u","role":"user","parts":[{"type":"file","url":"file:///etc/passwd"}]}`):           "messages[0].parts[0].url",
	chatBody(user, assistantMessage(`{"type":"tool-a b","state":"output-available","toolCallId":"c"}`)): "messages[1].parts[0]",
	chatBody(user, assistantMessage(`{"type":"tool-a","state":"output-available"}`)):                    "messages[1].parts[0].toolCallId",
}

func TestBadBodyIsRefusedByTheNameOfItsField(t *testing.T) {
	for body, field := range invalidBodies {
		_, err := aisdk.Decode([]byte(body))
		var bad *aisdk.Invalid
		if !errors.As(err, &bad) || bad.Field != field || bad.Message == "" {
			t.Errorf("%.120s: %v, want an Invalid, Field %q, Message non-empty", body, err, field)
		}
	}
}

// FuzzDecode holds Decode to its promise: an *Invalid, or a request that the agent can
// take.
func FuzzDecode(f *testing.F) {
	for body := range invalidBodies {
		if len(body) < 4096 {
			f.Add([]byte(body))
		}
	}
	f.Add([]byte(chatBody(user, assistantMessage(`{"type":"dynamic-tool","toolName":"elicitation","toolCallId":"i","state":"output-available","output":{"action":7}}`))))
	f.Add([]byte(chatBody(user)))
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := aisdk.Decode(body)
		var bad *aisdk.Invalid
		switch {
		case err != nil && !errors.As(err, &bad):
			t.Fatalf("error %T, want *Invalid", err)
		case err != nil:
			return
		case !thread.IsID(q.ThreadID):
			t.Fatalf("thread %q, want a valid ID", q.ThreadID)
		case q.MessageID == "" && strings.TrimSpace(q.Question) == "" && len(q.Media) == 0:
			t.Fatalf("request %+v, want a question or media", q)
		case q.MessageID != "" && len(q.Answers) == 0 && !q.HasToolResults():
			t.Fatalf("request %+v, want answers or tool results", q)
		}
		open := map[string]bool{}
		for _, m := range q.History {
			for _, c := range m.Calls {
				open[c.ID] = true
			}
			if m.Role == "tool" && !open[m.CallID] {
				t.Fatal("a result without its call: open[m.CallID] false, want true")
			}
		}
	})
}
