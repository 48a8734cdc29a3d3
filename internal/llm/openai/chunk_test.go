package openai

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// partCollector collects the parts that its assembler emits.
type partCollector struct {
	a     assembler
	parts []llm.Part
}

func (c *partCollector) assembler() *assembler {
	c.a.yield = func(p llm.Part) bool { c.parts = append(c.parts, p); return true }
	return &c.a
}

// nestedArrays returns n arrays within each other.
func nestedArrays(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestChunkDecodesToItsParts(t *testing.T) {
	for data, want := range map[string][]string{
		tokenChunk: {`text " word"`},
		deltaChunk(`{"content":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"}`):                                       {`text "\"\\/\b\f\n\r\té😀"`},
		deltaChunk(`{"content":"a\ud83db"}`):                                                                 {`text "a�b"`},
		deltaChunk("{\"content\":\"a\xffb\"}"):                                                               {`text "a�b"`},
		deltaChunk(`{"con\u0074ent":"a"}`):                                                                   {`text "a"`},
		deltaChunk(`{"Content":"a"}`):                                                                        nil,
		deltaChunk(`{"content":"a","content":"b"}`):                                                          {`text "b"`},
		`{"choices":[{"delta":{"content":"a"}}],"choices":[{"delta":{"content":"b"}}]}`:                      {`text "b"`},
		`{"choices":[{"delta":{"content":"a"},"delta":{"reasoning":"b"}}]}`:                                  {`reasoning "b"`},
		` { "x" : [ 1 , -0.5e+3 , true , { } , [ ] ] , "choices" : [ { "delta" : { "content" : "a" } } ] } `: {`text "a"`},
		`{"x":` + nestedArrays(maxDepth-1) + `,"choices":[{"delta":{"content":"a"}}]}`:                       {`text "a"`},
		`{"model":null,"choices":[null,{"index":null,"delta":null,"message":{"content":"a"},"finish_reason":null}],"usage":null,"error":null}`: {`text "a"`},
		deltaChunk(`{"content":5,"refusal":{},"reasoning":[],"tool_calls":null}`):                                                              nil,
		deltaChunk(`{"content":["a",{"type":"text","text":"b"},{"text":{}},{"type":"thinking","thinking":"c"}]}`):                              {`reasoning "c"`, `text "b"`},
		`null`: nil,
	} {
		var c partCollector
		if err := c.assembler().decodeChunk([]byte(data)); err != nil {
			t.Errorf("%.100s: got error %v, want none", data, err)
		}
		if got, want := llmtest.FormatParts(c.parts), strings.Join(append(want, ""), "\n"); got != want {
			t.Errorf("%.100s: got\n%swant\n%s", data, got, want)
		}
	}
}

func TestChunkOfAWrongTypeIsAnError(t *testing.T) {
	for _, data := range []string{
		`[]`, `"a"`, `1`, `{"model":1}`, `{"choices":{}}`, `{"choices":["a"]}`, `{"choices":[{"index":"0"}]}`, `{"choices":[{"index":0.0}]}`, `{"choices":[{"index":99999999999999999999}]}`,
		`{"choices":[{"finish_reason":{}}]}`, `{"choices":[{"delta":"a"}]}`, deltaChunk(`{"tool_calls":{}}`), deltaChunk(`{"tool_calls":[1]}`), deltaChunk(`{"tool_calls":[{"id":1}]}`),
		deltaChunk(`{"tool_calls":[{"index":1e0}]}`), deltaChunk(`{"tool_calls":[{"function":"f"}]}`), deltaChunk(`{"tool_calls":[{"function":{"name":[]}}]}`),
	} {
		var c chunk
		if err := c.decodeJSON([]byte(data)); err == nil || errors.Is(err, errCut) || c.scan.syntaxErr != nil {
			t.Errorf("%s: got %v, want a wrong type", data, err)
		}
	}
}

// mlx-vlm names the counts as the Responses API does, and some gateways add those names with zeros.
func TestUsageWithTheNamesOfTheResponsesAPIIsRead(t *testing.T) {
	for data, want := range map[string]llm.Usage{
		`{"usage":{"input_tokens":11,"output_tokens":5,"total_tokens":16,"generation_tps":81.5}}`:                              {Input: 11, Output: 5, Total: 16},
		`{"usage":{"prompt_tokens":11,"completion_tokens":5,"total_tokens":16,"input_tokens":0,"output_tokens":0}}`:            {Input: 11, Output: 5, Total: 16},
		`{"usage":{"input_tokens":11,"output_tokens":5,"prompt_tokens":11,"completion_tokens":5,"input_tokens_details":null}}`: {Input: 11, Output: 5, Total: 16},
	} {
		var c chunk
		if err := c.decodeJSON([]byte(data)); err != nil || c.usage == nil || *c.usage != want {
			t.Errorf("%s: got %v %v, want %v", data, c.usage, err, want)
		}
	}
}

// What an answer cost is not worth losing it.
func TestChunkWithAnInvalidUsageIsAccepted(t *testing.T) {
	for data, want := range map[string]*llm.Usage{
		`{"usage":{"prompt_tokens":3,"completion_tokens":2}}`: {Input: 3, Output: 2, Total: 5}, `{"usage":{"total_tokens":7,"x":{}}}`: {Total: 7},
		`{"usage":[]}`: nil, `{"usage":"a"}`: nil, `{"usage":{"prompt_tokens":1.5,"total_tokens":1}}`: nil, `{"usage":{"total_tokens":{}}}`: nil, `{"usage":{},"usage":null}`: nil,
		`{"usage":{"prompt_tokens":-3,"completion_tokens":2}}`: nil, `{"usage":{"total_tokens":-1}}`: nil, `{"usage":{"input_tokens":-1,"total_tokens":1}}`: nil,
		`{"usage":{"prompt_tokens":9223372036854775807,"completion_tokens":1}}`: nil,
	} {
		var c chunk
		if err := c.decodeJSON([]byte(data)); err != nil || (c.usage == nil) != (want == nil) || want != nil && *c.usage != *want {
			t.Errorf("%s: got %v %v, want %v", data, c.usage, err, want)
		}
	}
}

// xAI and Gemini count reasoning in total_tokens alone, and bill it as output.
func TestUsageCountsReasoningAsOutput(t *testing.T) {
	for data, want := range map[string]llm.Usage{
		`{"usage":{"prompt_tokens":32,"completion_tokens":9,"total_tokens":135,"completion_tokens_details":{"reasoning_tokens":94}}}`: {Input: 32, Output: 103, Total: 135},
		`{"usage":{"prompt_tokens":20,"completion_tokens":198,"total_tokens":623}}`:                                                   {Input: 20, Output: 603, Total: 623},
		`{"usage":{"prompt_tokens":5,"completion_tokens":9,"total_tokens":14,"completion_tokens_details":{"reasoning_tokens":8}}}`:    {Input: 5, Output: 9, Total: 14},
		`{"usage":{"prompt_tokens":5,"completion_tokens":9,"total_tokens":1}}`:                                                        {Input: 5, Output: 9, Total: 1},
	} {
		var c chunk
		if err := c.decodeJSON([]byte(data)); err != nil || c.usage == nil || *c.usage != want {
			t.Errorf("%s: got %v %v, want %v", data, c.usage, err, want)
		}
	}
}

// A chunk that ends too early may be a stream that broke off, another is nonsense.
func TestChunkTruncatedDiffersFromOneThatIsMalformed(t *testing.T) {
	whole := `{"choices":[{"delta":{"content":"a\u00e9\n"},"index":0,"x":[-1.5e+10,true,false,null]}]}`
	for i := range len(whole) {
		var c chunk
		if err := c.decodeJSON([]byte(whole[:i])); !errors.Is(err, errCut) {
			t.Errorf("%s: got %v, want %v", whole[:i], err, errCut)
		}
	}
	for _, data := range []string{
		"SECRET", "{}x", "{}\x00", "\x00", "{,}", `{"a":1,}`, `{"a":1,,}`, `{"a" 1}`, `{"a":1 "b":2}`, `{a:1}`, `{"a":[1,]}`, `{"a":[1}`, `{"a":01}`, `{"a":-}`, `{"a":1.}`, `{"a":.5}`, `{"a":1e}`, `{"a":+1}`,
		`{"a":nul}`, `{"a":truex}`, `{"a":"\x"}`, `{"a":"\u12g4"}`, "{\"a\":\"\n\"}", `{"a":` + nestedArrays(maxDepth) + `}`,
	} {
		var c chunk
		if err := c.decodeJSON([]byte(data)); err == nil || errors.Is(err, errCut) || json.Valid([]byte(data)) {
			t.Errorf("%.100q: got %v, want malformed", data, err)
		}
	}
}

// FuzzChunk: whatever the endpoint sends as chunks, nothing panics, they decode to what
// encoding/json makes of them, and what the assembler gives keeps the promises of the package.
func FuzzChunk(f *testing.F) {
	for _, c := range shapes {
		var chunks []string
		for line := range strings.SplitSeq(c.wire, "\n") {
			if data, ok := strings.CutPrefix(line, "data:"); ok {
				chunks = append(chunks, strings.TrimSpace(data))
			}
		}
		f.Add([]byte(strings.Join(chunks, "\n")))
	}
	f.Add([]byte(tokenChunk))
	f.Fuzz(func(t *testing.T, chunks []byte) {
		var c partCollector
		a := c.assembler()
		for line := range strings.SplitSeq(string(chunks), "\n") {
			checkDecodedChunk(t, []byte(line))
			if a.decodeChunk([]byte(line)) != nil {
				return
			}
		}
		if a.finishAnswer() == nil {
			llmtest.CheckParts(t, c.parts)
		}
	})
}

// checkDecodedChunk compares what data decode to with what encoding/json makes of them.
func checkDecodedChunk(t *testing.T, data []byte) {
	t.Helper()
	var c chunk
	err := c.decodeJSON(data)
	if valid := json.Valid(data); (c.scan.syntaxErr == nil) != valid {
		t.Fatalf("%q: got %v, want valid %v", data, err, valid)
	}

	// Decode the chunk with the library.
	var want struct {
		Model   string `json:"model"`
		Choices []struct {
			Delta struct {
				Content   any `json:"content"`
				Reasoning any `json:"reasoning"`
				ToolCalls []struct {
					Index    *int64 `json:"index"`
					ID       string `json:"id"`
					Function struct {
						Name      string `json:"name"`
						Arguments any    `json:"arguments"`
					} `json:"function"`
				} `json:"tool_calls"`
			} `json:"delta"`
			FinishReason string `json:"finish_reason"`
		} `json:"choices"`
	}
	// The second version tells names apart by case, and refuses two of one name.
	if jsonv2.Unmarshal(data, &want, jsontext.AllowInvalidUTF8(true)) != nil || err != nil {
		return
	}

	// Compare the two.
	checkSame := func(what, got string, want any) {
		t.Helper()
		if want, ok := want.(string); ok && got != want {
			t.Errorf("%q: %s: got %q, want %q", data, what, got, want)
		}
	}
	if len(c.model) > 0 {
		checkSame("model", c.scan.unquoteString(c.model), want.Model)
	}
	if len(c.choices) != len(want.Choices) {
		t.Fatalf("%q: got %d choices, want %d", data, len(c.choices), len(want.Choices))
	}
	for i, w := range want.Choices {
		got := c.choices[i]
		checkSame("content", got.delta.content, w.Delta.Content)
		checkSame("reasoning", got.delta.reasoning, w.Delta.Reasoning)
		checkSame("finish_reason", got.reason, w.FinishReason)
		if len(got.delta.calls) != len(w.Delta.ToolCalls) {
			t.Fatalf("%q: got %d calls, want %d", data, len(got.delta.calls), len(w.Delta.ToolCalls))
		}

		for j, call := range w.Delta.ToolCalls {
			p := got.delta.calls[j]
			checkSame("id", p.id, call.ID)
			checkSame("name", p.name, call.Function.Name)
			checkSame("arguments", p.arguments, call.Function.Arguments)
			if p.hasIndex != (call.Index != nil) || p.hasIndex && p.index != *call.Index {
				t.Errorf("%q: got index %d %v, want %v", data, p.index, p.hasIndex, call.Index)
			}
		}
	}
}
