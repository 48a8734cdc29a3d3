package texttool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// savedOutput is an entry of testdata/outputs.txt, which says what the fields mean.
type savedOutput struct {
	notation, model, source string
	tools                   []llm.Tool
	calls                   []writtenCall
	near, lost              bool
	text                    string
}

// loadOutputs reads testdata/outputs.txt.
func loadOutputs(t *testing.T) (out []savedOutput) {
	t.Helper()
	data, err := os.ReadFile("testdata/outputs.txt")
	if err != nil {
		t.Fatal(err)
	}

	_, rest, _ := strings.Cut(string(data), "\n=== ")
	for entry := range strings.SplitSeq(rest, "\n=== ") {
		head, text, found := strings.Cut(entry, "\n---\n")
		lines := strings.Split(head, "\n")
		fields := strings.Split(lines[0], " | ")
		if !found || len(fields) != 3 {
			t.Fatalf("entry %q, want a line with three fields", entry)
		}

		o := savedOutput{notation: fields[0], model: fields[1], source: fields[2], text: strings.TrimSuffix(text, "\n")}
		for _, line := range lines[1:] {
			kind, value, _ := strings.Cut(line, ": ")
			switch kind {
			case "tools":
				o.tools = parseTools(value)
			case "call", "near", "lost":
				name, arguments, _ := strings.Cut(value, " {")
				o.calls = append(o.calls, writtenCall{name, "{" + arguments})
				o.near, o.lost = o.near || kind == "near", o.lost || kind == "lost"
			default:
				t.Fatalf("%s: got the line %q, want one of the known kinds", o.source, line)
			}
		}
		if len(o.text) > 2048 || len(o.tools) == 0 {
			t.Errorf("%s: got %d bytes and %d tools, want at most 2048 and at least 1", o.source, len(o.text), len(o.tools))
		}
		out = append(out, o)
	}
	return out
}

var toolPattern = regexp.MustCompile(`([^();]+)\(([^()]*)\)`)

// parseTools reads tools such as "f(x, n:integer); g()", all of whose parameters are required.
func parseTools(line string) (tools []llm.Tool) {
	for _, m := range toolPattern.FindAllStringSubmatch(line, -1) {
		properties, required := map[string]any{}, []string{}
		for parameter := range strings.SplitSeq(m[2], ", ") {
			if name, kind, _ := strings.Cut(parameter, ":"); name != "" {
				properties[name] = map[string]string{"type": cmp.Or(kind, "string")}
				required = append(required, name)
			}
		}
		schema, _ := json.Marshal(map[string]any{"type": "object", "properties": properties, "required": required})
		tools = append(tools, llm.Tool{Name: strings.TrimSpace(m[1]), Schema: schema})
	}
	return tools
}

// readOutput reads o in pieces of n bytes and returns the calls and the text.
func readOutput(t *testing.T, o savedOutput, auto bool, n int) (calls []llm.ToolCall, text string) {
	t.Helper()
	x := &extractor{tools: o.tools, auto: auto, emit: func(p llm.Part) bool {
		switch p := p.(type) {
		case llm.Text:
			text += p.Delta
		case llm.ToolCall:
			calls = append(calls, p)
		}
		return true
	}}
	for rest := o.text; rest != ""; {
		k := min(n, len(rest))
		if err := x.readText(rest[:k]); err != nil {
			t.Fatal(err)
		}
		rest = rest[k:]
	}
	if err := x.finishAnswer(llm.Finish{Reason: "stop"}); err != nil {
		t.Fatal(err)
	}
	return calls, text
}

// sameCall reports whether a model's call is the one wanted, whatever the form of its arguments.
func sameCall(got llm.ToolCall, want writtenCall) bool {
	var a, b any
	return got.Name == want.name && json.Unmarshal([]byte(got.Arguments), &a) == nil && json.Unmarshal([]byte(want.arguments), &b) == nil && reflect.DeepEqual(a, b)
}

// What models really write is understood, and their answers, and prose about tools, are never
// taken for a call. The test prints how many calls of each notation are found.
func TestExtractorReadsOutputsOfModels(t *testing.T) {
	outputs := loadOutputs(t)
	answers := 0
	wanted, found := map[string]int{}, map[string]int{}
	for _, o := range outputs {
		for _, auto := range []bool{false, true} {
			calls, text := readOutput(t, o, auto, len(o.text))
			where := fmt.Sprintf("%s, %s, auto %t: %q", o.source, o.model, auto, o.text)
			switch {
			case len(o.calls) == 0:
				if len(calls) > 0 || text != o.text && strings.TrimSpace(o.text) != "" {
					t.Errorf("%s: got calls %v and the text %q, want the text alone", where, calls, text)
				}
			case o.near:
				isWanted := auto // then the text may also stay as it is
				if len(calls) > 0 {
					isWanted = len(calls) == 1 && calls[0].Name == o.calls[0].name && !isObject(calls[0].Arguments)
				}
				if !isWanted {
					t.Errorf("%s: got calls %v, want a malformed one of %s", where, calls, o.calls[0].name)
				}
			case o.lost:
				if len(calls) > 0 {
					t.Errorf("%s: got calls %v, want none: the entry says that it is not understood", where, calls)
				}
			case len(calls) != len(o.calls):
				t.Errorf("%s: got calls %v, want %v", where, calls, o.calls)
			default:
				for i := range calls {
					if !sameCall(calls[i], o.calls[i]) {
						t.Errorf("%s: got the call %v, want %v", where, calls[i], o.calls[i])
					}
				}
			}
		}
		if len(o.calls) == 0 {
			answers++
		} else if !o.near {
			wanted[o.notation]++
			if !o.lost {
				found[o.notation]++
			}
		}
	}

	all, understood := 0, 0
	for _, notation := range slices.Sorted(maps.Keys(wanted)) {
		t.Logf("%-18s %3d of %3d", notation, found[notation], wanted[notation])
		all, understood = all+wanted[notation], understood+found[notation]
	}

	t.Logf("%d outputs; calls understood in %d of %d (%.1f %%); answers and prose: %d, none taken for a call",
		len(outputs), understood, all, 100*float64(understood)/float64(all), answers)
	if len(outputs) < 200 || answers < 60 || 100*understood < 92*all {
		t.Errorf("got %d outputs with %d answers, and %d of %d understood; want at least 200, 60 and 92 %%", len(outputs), answers, understood, all)
	}
}

// The endpoint may cut a text into pieces at any byte.
func TestExtractorReadsOutputsOfModelsInAnyPieces(t *testing.T) {
	for _, o := range loadOutputs(t) {
		for _, auto := range []bool{false, true} {
			wantCalls, wantText := readOutput(t, o, auto, len(o.text))
			for _, n := range []int{1, 2, 3, 5, 7, 16, 61} {
				calls, text := readOutput(t, o, auto, n)
				if got, want := fmt.Sprint(withoutIDs(calls), text), fmt.Sprint(withoutIDs(wantCalls), wantText); got != want {
					t.Errorf("%s in pieces of %d, auto %t: got %s, want %s", o.source, n, auto, got, want)
				}
			}
		}
	}
}

// withoutIDs returns calls without their ids, which are random.
func withoutIDs(calls []llm.ToolCall) []llm.ToolCall {
	out := slices.Clone(calls)
	for i := range out {
		out[i].ID = ""
	}
	return out
}

// FuzzExtractor's property holds for outputs of models, too: parts keep the package's promises.
func TestOutputsOfModelsGiveWellFormedParts(t *testing.T) {
	for _, o := range loadOutputs(t) {
		var parts []llm.Part
		x := &extractor{tools: o.tools, emit: func(p llm.Part) bool { parts = append(parts, p); return true }}
		if err := x.readText(o.text); err != nil {
			t.Fatal(err)
		}
		if err := x.finishAnswer(llm.Finish{Reason: "stop"}); err != nil {
			t.Fatal(err)
		}
		llmtest.CheckParts(t, withoutText(joinDeltas(parts)))
	}
}
