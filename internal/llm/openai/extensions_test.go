package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// deltaStream returns an event stream of these deltas, which ends with tool calls.
func deltaStream(deltas ...string) string {
	var b strings.Builder
	for _, d := range deltas {
		fmt.Fprintf(&b, "data: {\"choices\":[{\"index\":0,\"delta\":%s}]}\n\n", d)
	}
	return b.String() + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\ndata: [DONE]\n\n"
}

const oneCall = `{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}`

func TestExtensionsOfAnAnswerAreCollected(t *testing.T) {
	for name, c := range map[string]struct {
		deltas        []string
		message, call string
	}{
		"nothing":         {[]string{`{"role":"assistant","content":"a"}`, oneCall}, "", ""},
		"pieces of text":  {[]string{`{"reasoning_content":"a"}`, `{"reasoning_content":"a"}`, `{"reasoning_content":null}`, oneCall}, `{"reasoning_content":"aa"}`, ""},
		"an empty text":   {[]string{`{"reasoning_content":""}`, oneCall}, `{"reasoning_content":""}`, ""},
		"raw JSON":        {[]string{`{"x":{"n":1.0, "big":12345678901234567890}}`, oneCall}, `{"x":{"n":1.0, "big":12345678901234567890}}`, ""},
		"repeated":        {[]string{`{"x":"v","y":{"z":"w"}}`, `{"x":"v","y":{"z":"w"}}`, oneCall}, `{"x":"v","y":{"z":"w"}}`, ""},
		"merged objects":  {[]string{`{"x":{"a":1}}`, `{"x":{"b":[2]}}`, oneCall}, `{"x":{"a":1,"b":[2]}}`, ""},
		"of a call":       {[]string{`{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{}"},"extra_content":{"google":{"thought_signature":"s=="}}}]}`}, "", `{"extra_content":{"google":{"thought_signature":"s=="}}}`},
		"after a call":    {[]string{oneCall, `{"tool_calls":[{"index":0,"extra_content":{"s":1}}]}`}, "", `{"extra_content":{"s":1}}`},
		"without a call":  {[]string{`{"tool_calls":[{"index":0,"extra_content":{"s":1}}]}`, oneCall}, "", ""},
		"beyond the size": {[]string{`{"x":"` + strings.Repeat("a", maxExtensions) + `"}`, oneCall}, "", ""},
		"streamed elements": {[]string{
			`{"reasoning":"a","reasoning_details":[{"type":"reasoning.text","text":"a","format":"v1","index":0}]}`,
			`{"reasoning":"a","reasoning_details":[{"type":"reasoning.text","text":"a","format":"v1","index":0}]}`,
			`{"reasoning_details":[{"type":"reasoning.text","signature":"s","index":0}]}`,
			`{"reasoning_details":[{"type":"reasoning.encrypted","data":"e","index":1}]}`,
			`{"reasoning_details":[{"type":"reasoning.encrypted","data":"f","index":1}]}`, oneCall,
		}, `{"reasoning":"aa","reasoning_details":[{"type":"reasoning.text","text":"aa","format":"v1","index":0,"signature":"s"},` +
			`{"type":"reasoning.encrypted","data":"e","index":1},{"type":"reasoning.encrypted","data":"f","index":1}]}`, ""},
	} {
		_, m := newEndpoint(t, Config{}, sendStream(deltaStream(c.deltas...)))
		parts, err := llmtest.Collect(t.Context(), m, llm.Request{Model: "m"})
		if err != nil {
			t.Errorf("%s: got error %v, want none", name, err)
			continue
		}

		var got llm.Extensions
		for _, p := range parts {
			if x, ok := p.(llm.Extensions); ok {
				got = x
			}
		}

		call := ""
		if len(got.Calls) > 0 {
			call = string(got.Calls[0])
		}
		if string(got.Message) != c.message || call != c.call {
			t.Errorf("%s: got %s and of the call %s, want %s and %s", name, got.Message, call, c.message, c.call)
		}
	}
}

func TestContentInPartsIsCollected(t *testing.T) {
	thinking := func(text string) string {
		return `{"type":"thinking","thinking":[{"type":"text","text":"` + text + `"}]}`
	}
	for name, c := range map[string]struct {
		contents []string // of deltas
		parts    string   // to send back
		text     string
		reasoned string
	}{
		"text alone":           {[]string{`"a"`, `[{"type":"text","text":"b"}]`}, "", "ab", ""},
		"thinking":             {[]string{`""`, `[` + thinking("a") + `]`, `""`, `[` + thinking("b") + `]`}, `[` + thinking("ab") + `]`, "", "ab"},
		"text after it":        {[]string{`[` + thinking("a") + `]`, `[` + thinking("b") + `,{"type":"text","text":"c"}]`, `"d"`}, `[` + thinking("ab") + `,{"type":"text","text":"cd"}]`, "cd", "ab"},
		"text before it":       {[]string{`"c"`, `[` + thinking("a") + `]`, `"d"`}, `[{"type":"text","text":"c"},` + thinking("a") + `,{"type":"text","text":"d"}]`, "cd", "a"},
		"a signature":          {[]string{`[{"type":"thinking","thinking":[],"signature":"s==","closed":false}]`, `[{"type":"thinking","thinking":[{"type":"text","text":"a"}],"closed":true}]`}, `[{"type":"thinking","thinking":[{"type":"text","text":"a"}],"signature":"s==","closed":true}]`, "", "a"},
		"references":           {[]string{`[{"type":"reference","reference_ids":[1]},{"type":"reference","reference_ids":[2]}]`, `"a"`}, `[{"type":"reference","reference_ids":[1]},{"type":"reference","reference_ids":[2]},{"type":"text","text":"a"}]`, "a", ""},
		"another member":       {[]string{`[{"type":"text","text":"a","x":1.0}]`, `"b"`}, `[{"type":"text","text":"ab","x":1.0}]`, "ab", ""},
		"an image":             {[]string{`[{"type":"image_url","image_url":"data:"}]`, `"a"`}, "", "a", ""},
		"beyond the size":      {[]string{`[` + thinking("a") + `]`, `"` + strings.Repeat("b", maxExtensions) + `"`}, "", strings.Repeat("b", maxExtensions), "a"},
		"a part that is large": {[]string{`[` + thinking(strings.Repeat("a", maxExtensions)) + `]`, `"b"`}, "", "b", strings.Repeat("a", maxExtensions)},
	} {
		// Collect the message from its deltas.
		var deltas []string
		for _, content := range c.contents {
			deltas = append(deltas, `{"content":`+content+`}`)
		}
		endpoint, m := newEndpoint(t, Config{}, sendStream(deltaStream(append(deltas, oneCall)...)))
		parts, err := llmtest.Collect(t.Context(), m, llm.Request{Model: "m"})
		if err != nil {
			t.Errorf("%s: got error %v, want none", name, err)
			continue
		}
		message, reasoned := llm.Message{Role: llm.Assistant}, ""
		for _, p := range parts {
			switch p := p.(type) {
			case llm.Text:
				message.Text += p.Delta
			case llm.Reasoning:
				reasoned += p.Delta
			case llm.Extensions:
				message.Extensions = &p
			}
		}
		if message.Text != c.text || reasoned != c.reasoned {
			t.Errorf("%s: got text %q and reasoning %q, want %q and %q", name, message.Text, reasoned, c.text, c.reasoned)
		}

		// Send the message back, and compare its content.
		if _, err := llmtest.Collect(t.Context(), m, llm.Request{Model: "m", Messages: []llm.Message{message}}); err != nil {
			t.Fatal(err)
		}
		var body struct {
			Messages []struct{ Content json.RawMessage }
		}
		requests := endpoint.receivedRequests()
		if err := json.Unmarshal(requests[len(requests)-1].body, &body); err != nil {
			t.Fatal(err)
		}
		want := c.parts
		if want == "" {
			want = `"` + c.text + `"`
		}
		if got := string(body.Messages[0].Content); got != want {
			t.Errorf("%s: sent back %.300s, want %.300s", name, got, want)
		}
	}
}

func TestExtensionsGoBackToTheirEndpointOnly(t *testing.T) {
	answer := sendStream(deltaStream(`{"reasoning_content":"why"}`, `{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{}"},"extra_content":{"s":1}}]}`))
	own, m := newEndpoint(t, Config{}, answer)
	other, n := newEndpoint(t, Config{}, answer)
	parts, err := llmtest.Collect(t.Context(), m, llm.Request{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}

	message := llm.Message{Role: llm.Assistant}
	for _, p := range parts {
		switch p := p.(type) {
		case llm.ToolCall:
			message.Calls = append(message.Calls, p)
		case llm.Extensions:
			message.Extensions = &p
		}
	}

	for _, model := range []*Model{m, n} {
		if _, err := llmtest.Collect(t.Context(), model, llm.Request{Model: "m", Messages: []llm.Message{message}}); err != nil {
			t.Fatal(err)
		}
	}

	lastMessage := func(e *scriptedEndpoint) string {
		requests := e.receivedRequests()
		var body struct{ Messages []json.RawMessage }
		if err := json.Unmarshal(requests[len(requests)-1].body, &body); err != nil {
			t.Fatal(err)
		}
		return string(body.Messages[0])
	}

	call := `"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}`
	if got, want := lastMessage(own), `{"role":"assistant","content":null,`+call+`,"extra_content":{"s":1}}],"reasoning_content":"why"}`; got != want {
		t.Errorf("the endpoint of the answer got %s, want %s", got, want)
	}
	if got, want := lastMessage(other), `{"role":"assistant","content":null,`+call+`}]}`; got != want {
		t.Errorf("another endpoint got %s, want %s", got, want)
	}
}
