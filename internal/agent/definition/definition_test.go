package definition_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"answerd/internal/agent/definition"
	"answerd/internal/llm"
	"answerd/internal/mcp/catalog"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// options are those of a service with the models fast and slow and the servers crm and wiki.
var options = definition.Options{
	Models: []string{"fast", "slow"}, Servers: []string{"crm", "wiki"}, Dir: "/etc/answerd",
	ReadFile: func(name string) ([]byte, error) {
		if name == "/etc/answerd/research.txt" {
			return []byte("You search. {{.tools}}"), nil
		}
		return nil, fs.ErrNotExist
	},
}

// checkGolden compares got with a file of testdata.
func checkGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

func readTestdata(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseReadsEveryMember(t *testing.T) {
	file, err := definition.Parse(readTestdata(t, "agents.yaml"), options)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "agents.golden", append(got, '\n'))
}

// JSON with tabs, escapes and characters of two escapes is also a file of agents.
func TestParseReadsJSON(t *testing.T) {
	text := "{\n\t\"agents\": [\n\t\t{\"id\": \"a\", \"description\": \"a\\/b \\ud83d\\ude00 \\\\ud83d \\u00e9\"}\n\t]\n}"
	var want struct {
		Agents []struct{ Description string }
	}
	if err := json.Unmarshal([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	file, err := definition.Parse([]byte(text), options)
	if err != nil {
		t.Fatal(err)
	}
	if got := file.Agents[0].Description; got != want.Agents[0].Description {
		t.Errorf("description: got %q, want %q", got, want.Agents[0].Description)
	}
}

// mistakes are files that are refused, one each.
var mistakes = []string{
	"", "[]", "agents: []", "agents: 1", "agents: [1]", "agents:\n- id: a\n\tx: 1", "{\"agents\": [", "a: 1", "agents:\n- id: a\n---\n- 2", "agents:\n- id: a\n---\n: [",
	"agents:\n- description: x", "agents:\n- id: A", "agents:\n- id: answer", "agents:\n- id: capabilities", "agents:\n- id: fast", "agents:\n- id: a\n- id: a", "agents:\n- id: 7",
	"agents:\n- id: a\n  id: b", "agents:\n- id: a\n  modle: fast", "agents:\n- id: a\n  model: gpt", "agents:\n- id: a\n  model: null",
	"agents:\n- id: a\n  prompt: \"{{.unknown}}\"", "agents:\n- id: a\n  prompt: x\n  prompt_file: y", "agents:\n- id: a\n  prompt_file: none.txt",
	"agents:\n- id: a\n  servers: crm", "agents:\n- id: a\n  servers:\n  - crm\n  - erp", "agents:\n- id: a\n  tools: [\"[\"]",
	"agents:\n- id: a\n  approval: sometimes", "agents:\n- id: a\n  max_turns: 0", "agents:\n- id: a\n  max_turns: 1.5",
	"agents:\n- id: a\n  budget: {dollars: 1}", "agents:\n- id: a\n  budget: {cost: -1}", "agents:\n- id: a\n  budget: {seconds: .nan}", "agents:\n- id: a\n  budget: 3",
	"agents:\n- id: a\n  sampling: {temperature: 3}", "agents:\n- id: a\n  sampling: {seed: x}", "agents:\n- id: a\n  sampling: {top_p: 1}",
	"agents:\n- id: a\n  output_schema: 3", "agents:\n- id: a\n  output_schema: {$ref: \"https://example.com/x\"}", "agents:\n- id: a\n  output_schema: {minimum: .inf}", "agents:\n- id: a\n  output_schema: {a: 1, a: 2}",
	"agents:\n- id: a\n  output_schema:\n    properties: {a: {type: strin}}",
	"agents:\n- id: a\n  examples: [1]", "agents:\n- &x\n  id: a\n- *x", "agents:\n- id: a\n  tools: &t [x]\n- id: b\n  tools: *t",
	"agents:\n- id: a\n  agents: [b]", "agents:\n- id: a\n  agents: [a]", "agents:\n- id: a\n  agents: [b, b]\n- id: b",
	"agents:\n- id: a\n  agents: [b]\n- id: b\n  agents: [c]\n- id: c\n  agents:\n  - b", "agents:\n- id: a\n  agents: [" + strings.Repeat("b", 61) + "]\n- id: " + strings.Repeat("b", 61),
	"agents:\n- id: a\n  description: \"\xff\"", "agents:\n- id: a\n  ? [x]\n  : 1",
}

func TestParseNamesTheAgentAndTheLine(t *testing.T) {
	var b strings.Builder
	for _, text := range mistakes {
		_, err := definition.Parse([]byte(text), options)
		if _, ok := errors.AsType[*definition.Error](err); !ok {
			t.Errorf("%q: got %v, want a *definition.Error", text, err)
		}
		fmt.Fprintf(&b, "%q\n\t%v\n", text, err)
	}
	checkGolden(t, "mistakes.golden", []byte(b.String()))
}

func TestChainOfAgentsMayBeLong(t *testing.T) {
	text := "agents:\n"
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		text += fmt.Sprintf("- {id: %s, agents: [%c]}\n", id, id[0]+1)
	}
	if _, err := definition.Parse([]byte(text+"- id: f\n"), options); err != nil {
		t.Errorf("a chain of six agents: got %v, want nil", err)
	}
}

func TestAgentNarrowsTools(t *testing.T) {
	all := []catalog.Tool{
		{Server: "crm", Name: "crm_get_order", Annotations: &catalog.Annotations{ReadOnly: true}},
		{Server: "crm", Name: "crm_delete"}, {Server: "wiki", Name: "find", NeedsApproval: true}, {Server: "erp", Name: "crm_get_erp"},
	}
	for _, c := range []struct{ member, want string }{
		{"description: x", "crm_get_order crm_delete find! crm_get_erp"},
		{"servers: [crm]", "crm_get_order crm_delete"},
		{"servers: []", ""},
		{"tools: [\"crm_get_*\"]", "crm_get_order crm_get_erp"},
		{"approval: destructive", "crm_get_order crm_delete! find! crm_get_erp!"},
		{"approval: always", "crm_get_order! crm_delete! find! crm_get_erp!"},
		{"approval: never", "crm_get_order crm_delete find! crm_get_erp"},
	} {
		file, err := definition.Parse([]byte("agents:\n- id: a\n  "+c.member), options)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range file.Agents[0].FilterTools(all) {
			name := tool.Name
			if tool.NeedsApproval {
				name += "!"
			}
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: got %q, want %q (! marks an approval)", c.member, got, c.want)
		}
	}
	if all[1].NeedsApproval {
		t.Error("FilterTools changed its argument")
	}
}

func TestQuestionSamplesWithItsOwnValuesFirst(t *testing.T) {
	file, err := definition.Parse(readTestdata(t, "agents.yaml"), options)
	if err != nil {
		t.Fatal(err)
	}
	hot := 1.5
	got := file.Agents[0].ApplySampling(llm.Sampling{Temperature: &hot})
	if *got.Temperature != hot || got.ReasoningEffort != "low" || *got.Seed != 7 {
		t.Errorf("got %+v, want the question's temperature, and the agent's effort and seed", got)
	}
}

// FuzzParse: any file is an *Error or a file whose agents can be encoded and have no cycle.
func FuzzParse(f *testing.F) {
	for _, text := range mistakes {
		f.Add([]byte(text))
	}

	data, err := os.ReadFile("testdata/agents.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)

	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := definition.Parse(data, options)
		if err != nil {
			if _, ok := errors.AsType[*definition.Error](err); !ok || strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("got %q, want an *Error of one line", err)
			}
			return
		}
		if _, err := json.Marshal(file); err != nil {
			t.Fatal(err)
		}
		var depth func(id string, level int)
		depth = func(id string, level int) {
			if level > len(file.Agents) {
				t.Fatal("the agents ask each other in a cycle")
			}
			if level > 8 {
				return // the number of ways through many agents is not bounded
			}
			for _, asked := range definition.Find(file.Agents, id).Agents {
				depth(asked, level+1)
			}
		}
		for _, a := range file.Agents[:min(len(file.Agents), 8)] {
			depth(a.ID, 0)
		}
	})
}
