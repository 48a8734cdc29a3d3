package openai

import (
	"net/http"
	"testing"

	"answerd/internal/llm/llmtest"
)

// shapes are the variants in which endpoints send the same answer.
var shapes = map[string]struct {
	wire string
	want string
}{
	"the normal shape": {
		helloStream,
		llmtest.Lines(`text "Hel"`, `text "lo"`, `usage 3 2 5`, `finish stop m-1`),
	},
	"usage with the finish chunk, no DONE": {
		eventStream(textChunk("a"), `{"choices":[{"delta":{},"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`),
		llmtest.Lines(`text "a"`, `usage 1 1 2`, `finish length m-1`),
	},
	"an error that is empty is none": {
		eventStream(`{"model":"m-1","choices":[{"delta":{"content":"a"}}],"error":""}`, `{"choices":[{"delta":{"content":"b"},"error":{}}],"error":false}`, stopChunk),
		llmtest.Lines(`text "a"`, `text "b"`, `finish stop m-1`),
	},
	"usage in the choice": { // Moonshot
		eventStream(textChunk("a"), `{"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}]}`, "[DONE]"),
		llmtest.Lines(`text "a"`, `usage 3 2 5`, `finish stop m-1`),
	},
	"usage of an odd shape is passed over": {
		eventStream(textChunk("a"), `{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1.5}}`),
		llmtest.Lines(`text "a"`, `finish stop m-1`),
	},
	"last blank line missing, CRLF, heartbeats": {
		": ping\r\n\r\ndata: " + textChunk("a") + "\r\n\r\n: OPENROUTER PROCESSING\r\n\r\ndata:" + stopChunk + "\r\n\r\ndata: [DONE]",
		llmtest.Lines(`text "a"`, `finish stop m-1`),
	},
	"prompt filter first, empty choices": {
		eventStream(`{"choices":[],"prompt_filter_results":[{"prompt_index":0}]}`, textChunk("a"), stopChunk),
		llmtest.Lines(`text "a"`, `finish stop m-1`),
	},
	"reasoning under either name, or both": {
		eventStream(deltaChunk(`{"reasoning_content":"x"}`), deltaChunk(`{"reasoning":"y"}`), deltaChunk(`{"reasoning_content":"z","reasoning":"z"}`), textChunk("a"), stopChunk),
		llmtest.Lines(`reasoning "x"`, `reasoning "y"`, `reasoning "z"`, `text "a"`, `extensions {"reasoning_content":"xz","reasoning":"yz"} []`, `finish stop m-1`),
	},
	"content as parts, thinking among them": {
		eventStream(deltaChunk(`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"image_url"}]}`), stopChunk),
		llmtest.Lines(`reasoning "hm"`, `text "ab"`, `extensions  [][{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"ab"}]`, `finish stop m-1`),
	},
	"a refusal is text": {
		eventStream(deltaChunk(`{"content":null,"refusal":"No."}`), stopChunk),
		llmtest.Lines(`text "No."`, `finish stop m-1`),
	},
	"a whole message instead of deltas": {
		eventStream(`{"model":"m-1","choices":[{"message":{"content":"a","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`),
		llmtest.Lines(`text "a"`, `start 0 c f`, `args 0 {}`, `call 0 c f {}`, `finish tool_calls m-1`),
	},
	"a whole message after the deltas": {
		eventStream(textChunk("a"), `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`),
		llmtest.Lines(`text "a"`, `finish stop m-1`),
	},
	"another choice is not ours": {
		eventStream(`{"choices":[{"index":1,"delta":{"content":"other"}}]}`, textChunk("a"), stopChunk),
		llmtest.Lines(`text "a"`, `finish stop m-1`),
	},
	"calls: no index and no id after an empty object": {
		eventStream(deltaChunk(`{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}`), deltaChunk(`{"tool_calls":[{"function":{"name":"g","arguments":""}}]}`), deltaChunk(`{"tool_calls":[{"function":{"arguments":"{}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 * f`, `args 0 {}`, `start 1 * g`, `args 1 {}`, `call 0 * f {}`, `call 1 * g {}`, `finish stop m-1`),
	},
	"calls: an empty object before the arguments": { // gateways to Anthropic
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}`), deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]}`), deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}`),
			deltaChunk(`{"tool_calls":[{"index":1,"id":"d","function":{"name":"g","arguments":"{}"}}]}`), deltaChunk(`{"tool_calls":[{"index":2,"id":"e","function":{"name":"h","arguments":"{}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 c f`, `args 0 {"a"`, `args 0 :1}`, `start 1 d g`, `args 1 {}`, `start 2 e h`, `args 2 {}`, `call 0 c f {"a":1}`, `call 1 d g {}`, `call 2 e h {}`, `finish stop m-1`),
	},
	"calls: the normal shape, in parallel": {
		eventStream(deltaChunk(`{"content":null,"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]}`),
			deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]}`),
			deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}`),
			deltaChunk(`{"tool_calls":[{"index":1,"id":"c2","function":{"name":"g","arguments":""}}]}`),
			deltaChunk(`{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]}`),
			`{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`, usageChunk, "[DONE]"),
		llmtest.Lines(`start 0 c1 f`, `args 0 {"a"`, `args 0 :1}`, `start 1 c2 g`, `args 1 {}`,
			`call 0 c1 f {"a":1}`, `call 1 c2 g {}`, `usage 3 2 5`, `finish tool_calls m-1`),
	},
	"calls: interleaved, and finish_reason stop": { // F9
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{"}},{"index":1,"id":"c2","function":{"name":"g","arguments":"{"}}]}`),
			deltaChunk(`{"tool_calls":[{"index":1,"function":{"arguments":"}"}},{"index":0,"function":{"arguments":"}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 c1 f`, `args 0 {`, `start 1 c2 g`, `args 1 {`, `args 1 }`, `args 0 }`,
			`call 0 c1 f {}`, `call 1 c2 g {}`, `finish stop m-1`),
	},
	"calls: no index, no id, all at once": { // Gemini
		eventStream(deltaChunk(`{"tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}},{"function":{"name":"f","arguments":"{\"a\":2}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 * f`, `args 0 {"a":1}`, `start 1 * f`, `args 1 {"a":2}`, `call 0 * f {"a":1}`, `call 1 * f {"a":2}`, `finish stop m-1`),
	},
	"calls: no index, no id, a chunk each": {
		eventStream(deltaChunk(`{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}`), deltaChunk(`{"tool_calls":[{"index":null,"function":{"name":"g","arguments":"{}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 * f`, `args 0 {}`, `start 1 * g`, `args 1 {}`, `call 0 * f {}`, `call 1 * g {}`, `finish stop m-1`),
	},
	"calls: no index, ids": {
		eventStream(deltaChunk(`{"tool_calls":[{"id":"a","function":{"name":"f","arguments":""}}]}`), deltaChunk(`{"tool_calls":[{"id":"a","function":{"arguments":"{"}}]}`),
			deltaChunk(`{"tool_calls":[{"id":"b","function":{"name":"g"}}]}`), deltaChunk(`{"tool_calls":[{"function":{"arguments":"{}"}}]}`), deltaChunk(`{"tool_calls":[{"id":"a","function":{"arguments":"}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {`, `start 1 b g`, `args 1 {}`, `args 0 }`, `call 0 a f {}`, `call 1 b g {}`, `finish stop m-1`),
	},
	"calls: one index for all of them": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}`), deltaChunk(`{"tool_calls":[{"index":0,"id":"b","function":{"name":"f","arguments":"{}"}}]}`),
			deltaChunk(`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{\"a\":1}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {}`, `start 1 b f`, `args 1 {}`, `start 2 * f`, `args 2 {"a":1}`, `call 0 a f {}`, `call 1 b f {}`, `call 2 * f {"a":1}`, `finish stop m-1`),
	},
	"calls: one id for two": { // F9
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"a","function":{"name":"g","arguments":"{}"}}]}`),
			deltaChunk(`{"tool_calls":[{"index":2,"id":"a_2","function":{"name":"h","arguments":"{}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {}`, `start 1 a_2 g`, `args 1 {}`, `start 2 a_2_2 h`, `args 2 {}`, `call 0 a f {}`, `call 1 a_2 g {}`, `call 2 a_2_2 h {}`, `finish stop m-1`),
	},
	"calls: an id with U+0000": { // records of answerd begin with it
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"\u0000request 1 0","function":{"name":"f","arguments":"{}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 * f`, `args 0 {}`, `call 0 * f {}`, `finish stop m-1`),
	},
	"calls: name in pieces, id late": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"function":{"name":"get_"}}]}`), deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"weather"}}]}`), deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a get_weather`, `args 0 {}`, `call 0 a get_weather {}`, `finish stop m-1`),
	},
	"calls: name and a new id with every piece": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}`), deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}`), deltaChunk(`{"tool_calls":[{"index":0,"id":"z","function":{"arguments":"}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {`, `args 0 }`, `call 0 a f {}`, `finish stop m-1`),
	},
	"calls: without arguments": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}},{"index":1,"id":"b","function":{"name":"g","arguments":null}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `start 1 b g`, `call 0 a f `, `call 1 b g `, `finish stop m-1`),
	},
	"calls: the whole call once more at the end": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"a\""}}]}`), deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}`),
			deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"a\":1}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {"a"`, `args 0 :1}`, `call 0 a f {"a":1}`, `finish stop m-1`),
	},
	"calls: the arguments once more at the end": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"a\":1}"}}]}`), deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {"a":1}`, `call 0 a f {"a":1}`, `finish stop m-1`),
	},
	"calls: the arguments twice in one piece": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"a\":1}{\"a\":1}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {"a":1}`, `call 0 a f {"a":1}`, `finish stop m-1`),
	},
	"calls: one call under two indexes": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"a\":1}"}}]}`), deltaChunk(`{"tool_calls":[{"index":1,"id":"a","function":{"name":"f","arguments":"{\"a\":1}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {"a":1}`, `call 0 a f {"a":1}`, `finish stop m-1`),
	},
	"calls: two calls that are equal": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"a\":1}"}},{"index":1,"id":"b","function":{"name":"f","arguments":"{\"a\":1}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {"a":1}`, `start 1 b f`, `args 1 {"a":1}`, `call 0 a f {"a":1}`, `call 1 b f {"a":1}`, `finish stop m-1`),
	},
	"usage: zeros behind the tokens": {
		eventStream(textChunk("a"), stopChunk, usageChunk, `{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}`, "[DONE]"),
		llmtest.Lines(`text "a"`, `usage 3 2 5`, `finish stop m-1`),
	},
	"calls: cut before the arguments": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}`), deltaChunk(`{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":""}}]}`),
			`{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`),
		llmtest.Lines(`start 0 a f`, `start 1 b g`, `args 1 {`, `call 0 a f `, `call 1 b g {`, `finish length m-1`),
	},
	"calls: arguments as an object": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":{"a": 1}}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {"a": 1}`, `call 0 a f {"a": 1}`, `finish stop m-1`),
	},
	"calls: arguments that are no JSON": { // F9
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{'a': "}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {'a': `, `call 0 a f {'a': `, `finish stop m-1`),
	},
	"calls: sparse indexes, empty pieces": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":7,"id":"a","function":{"name":"f","arguments":"{}"}}]}`), deltaChunk(`{"tool_calls":[{"index":3}]}`), deltaChunk(`{"tool_calls":[{"index":2,"id":"b","function":{"name":"g","arguments":"{}"}}]}`), stopChunk),
		llmtest.Lines(`start 0 a f`, `args 0 {}`, `start 1 b g`, `args 1 {}`, `call 0 a f {}`, `call 1 b g {}`, `finish stop m-1`),
	},
	"calls: more of one after finish_reason": {
		eventStream(deltaChunk(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}`), stopChunk, deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}`), "[DONE]"),
		llmtest.Lines(`start 0 a f`, `args 0 {`, `args 0 }`, `call 0 a f {}`, `finish stop m-1`),
	},
}

func TestResponseVariantsGiveTheSameParts(t *testing.T) {
	for name, c := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, m := newEndpoint(t, Config{}, sendStream(c.wire))
			parts, err := llmtest.Collect(t.Context(), m, testRequest)
			if err != nil {
				t.Fatal(err)
			}
			if got := llmtest.FormatParts(parts); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

// F11: the same, with a write for every few bytes.
func TestResponsePartsDoNotDependOnHowBytesArrive(t *testing.T) {
	for _, size := range []int{1, 3, 7} {
		for _, name := range []string{"the normal shape", "calls: the normal shape, in parallel", "last blank line missing, CRLF, heartbeats"} {
			c := shapes[name]
			_, m := newEndpoint(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
				for rest := c.wire; rest != ""; {
					n := min(size, len(rest))
					sendStream(rest[:n])(w, r)
					rest = rest[n:]
				}
			})
			parts, err := llmtest.Collect(t.Context(), m, testRequest)
			if got := llmtest.FormatParts(parts); err != nil || got != c.want {
				t.Errorf("%s, %d bytes a write: got error %v and\n%swant\n%s", name, size, err, got, c.want)
			}
		}
	}
}

func TestResponseThatIsNotStreamedIsAnAnswer(t *testing.T) {
	body := `
	{"id":"x","object":"chat.completion","model":"m-1","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","reasoning_content":"hm",
	"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},"finish_reason":"tool_calls"}],
	"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`
	want := llmtest.Lines(`reasoning "hm"`, `text "Hello"`, `start 0 c f`, `args 0 {"a":1}`, `call 0 c f {"a":1}`, `extensions {"reasoning_content":"hm"} []`, `usage 3 2 5`, `finish tool_calls m-1`)
	for _, media := range []string{"application/json; charset=utf-8", "text/event-stream", "text/plain"} {
		_, m := newEndpoint(t, Config{}, replyStatus(200, body, "Content-Type", media))
		parts, err := llmtest.Collect(t.Context(), m, testRequest)
		if got := llmtest.FormatParts(parts); err != nil || got != want {
			t.Errorf("%s: got error %v and\n%swant\n%s", media, err, got, want)
		}
	}
}

func TestResponseStreamIsRecognizedByItsFirstBytes(t *testing.T) {
	for _, media := range []string{"application/json", "text/plain", "application/octet-stream"} {
		_, m := newEndpoint(t, Config{}, replyStatus(200, helloStream, "Content-Type", media))
		if parts, err := llmtest.Collect(t.Context(), m, testRequest); err != nil || len(parts) != 4 {
			t.Errorf("%s: got %v and error %v, want 4 parts", media, parts, err)
		}
	}
}
