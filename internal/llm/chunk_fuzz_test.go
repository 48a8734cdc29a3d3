package llm

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
)

// The quick reading of a chunk may decline, but never differ.
func sameAsSlow(t *testing.T, data []byte) {
	t.Helper()
	if !json.Valid(data) {
		return
	}
	quick, slow := collector{}, collector{}
	taken, err := quick.assembler().addQuick(data)
	if !taken {
		return
	}
	a := slow.assembler()
	c, slowErr := decodeChunk(data)
	if slowErr == nil {
		if !absent(c.Error) {
			t.Fatalf("%q: the quick reading missed an error", data)
		}
		slowErr = a.add(c)
	}
	if (err == nil) != (slowErr == nil) || show(quick.parts) != show(slow.parts) {
		t.Errorf("%q: quick %v\n%sslow %v\n%s", data, err, show(quick.parts), slowErr, show(slow.parts))
	}
	b := &quick.a
	if a.reason != b.reason || a.model != b.model || (a.usage == nil) != (b.usage == nil) || a.usage != nil && *a.usage != *b.usage ||
		!slices.EqualFunc(a.calls.list, b.calls.list, sameCall) {
		t.Errorf("%q: the quick reading missed something: %+v, want %+v", data, b, a)
	}
}

func sameCall(a, b *call) bool {
	return a.upstream == b.upstream && a.numbered == b.numbered && a.upstreamID == b.upstreamID && a.name == b.name && string(a.arguments) == string(b.arguments)
}

// collector is an assembler and what it gave.
type collector struct {
	a     assembler
	parts []Part
}

func (c *collector) assembler() *assembler {
	c.a.emit = func(p Part) bool { c.parts = append(c.parts, p); return true }
	return &c.a
}

func TestTheQuickReadingTakesWhatIsUsual(t *testing.T) {
	for data, want := range map[string]bool{
		tokenChunk: true, says("a"): true, says("\n\"é"): true, delta(`{"role":"assistant","content":""}`): true,
		delta(`{"reasoning_content":"x","content":null}`): true, delta(`{"tool_calls":null,"content":"a"}`): true,
		stop: true, usage: true, delta(`{"Content":"a"}`): false,
		delta(`{"tool_calls":[{"index":3,"id":"c","type":"function","function":{"name":"t","arguments":"{\"a\":1}"}}]}`): true,
		delta(`{"tool_calls":[{"function":{"arguments":null}}]}`):                                                        true,
		delta(`{"tool_calls":[{"index":3,"index":3}]}`):                                                                  false,
		delta(`{"tool_calls":[{"index":03}]}`):                                                                           false,
		delta(`{"tool_calls":[{"index":1},{"index":2}]}`):                                                                false,
		delta(`{"tool_calls":[{"id":null}]}`):                                                                            false,
		delta(`{"tool_calls":[{"function":{"arguments":{}}}]}`):                                                          false, `{"choices":[{"finish_reason":"a\n","delta":{}}]}`: false,
		`{"choices":[],"usage":{"prompt_tokens":1,"details":{"total_tokens":"x"}}}`: true, `{"choices":[],"usage":{"prompt_tokens":1.0}}`: false,
		`{"choices":[],"usage":{"prompt_tokens":1,"prompt_tokens":2}}`: false, `{"choices":[],"usage":null,"usage":{}}`: false, delta(`{"content":["a"]}`): false,
		delta(`{"content":"a","content":"b"}`): false, delta(`{"tool_calls":[{}]}`): true, `{"error":{}}`: false, `{}`: false,
		`{"choices":[]}`: false, `{"choices":[{"delta":{"content":"a"}}] "x":1}`: false, tokenChunk + "x": false, tokenChunk + tokenChunk: false,
		`{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"b"}}]}`: false, tokenChunk[:100]: false, "": false, "[DONE]": false,
	} {
		if got := new(quickChunk).read([]byte(data)); got != want {
			t.Errorf("%s: taken %v, want %v", data, got, want)
		}
		sameAsSlow(t, []byte(data))
	}
}

// FuzzChunk: whatever the endpoint sends as chunks, nothing panics, the quick and the
// slow reading agree, and what the assembler gives keeps the promises of the package.
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
	m := NewOpenAI(OpenAIConfig{})
	f.Fuzz(func(t *testing.T, chunks []byte) {
		var c collector
		a := c.assembler()
		for line := range strings.SplitSeq(string(chunks), "\n") {
			sameAsSlow(t, []byte(line))
			if m.chunk(a, []byte(line), false) != nil {
				return
			}
		}
		if a.end(io.EOF) == nil {
			checkPromises(t, c.parts)
		}
	})
}

// checkPromises holds a complete answer to what model.go says about parts.
func checkPromises(t *testing.T, parts []Part) {
	t.Helper()
	started, args, ids, calls := map[int]ToolCallStart{}, map[int]string{}, map[string]bool{}, 0
	for i, p := range parts {
		switch p := p.(type) {
		case Text:
			if p.Delta == "" || calls > 0 {
				t.Errorf("part %d: text %q after %d calls", i, p.Delta, calls)
			}
		case ToolCallStart:
			if p.Index != len(started) || p.ID == "" || ids[p.ID] || p.Name == "" {
				t.Errorf("part %d: %+v", i, p)
			}
			started[p.Index], ids[p.ID] = p, true
		case ToolCallArgs:
			if _, ok := started[p.Index]; !ok || p.Delta == "" {
				t.Errorf("part %d: %+v before its start", i, p)
			}
			args[p.Index] += p.Delta
		case ToolCall:
			s := started[p.Index]
			if p.Index != calls || p.ID != s.ID || p.Name != s.Name || p.Arguments != args[p.Index] {
				t.Errorf("part %d: %+v, started as %+v with %q", i, p, s, args[p.Index])
			}
			calls++
		case Finish:
			if i != len(parts)-1 || calls != len(started) || p.Reason == "" {
				t.Errorf("part %d: %+v after %d of %d calls", i, p, calls, len(started))
			}
		}
	}
	if _, ok := parts[len(parts)-1].(Finish); !ok {
		t.Error("no finish")
	}
}
