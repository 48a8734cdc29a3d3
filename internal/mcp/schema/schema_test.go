package schema

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Each file is a table: schemas, and what becomes of values. A value is followed by
// what it is repaired to (=), which is nothing where it fits as it is, or by what is
// wrong with it (!).
func TestCheckGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil || len(files) == 0 {
		t.Fatalf("files %q, %v, want at least 1, no error", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".golden"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runCases(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("the golden file differs: got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// runCases returns the file with new outcomes.
func runCases(t *testing.T, file string) string {
	var out strings.Builder
	var s *Schema
	for line := range strings.Lines(file) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "= "), strings.HasPrefix(line, "! "), line == "=":
			continue // an outcome
		}
		fmt.Fprintln(&out, line)
		switch {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "schema "):
			var err error
			if s, err = Compile(json.RawMessage(line[len("schema "):])); err != nil {
				fmt.Fprintln(&out, "!", err)
			}
		case s != nil:
			got, problems := s.Check(json.RawMessage(line))
			for _, p := range problems {
				fmt.Fprintln(&out, "!", strings.ReplaceAll(p.Pointer, "\n", `\n`), p.Detail)
			}
			if problems == nil {
				fmt.Fprintln(&out, strings.TrimSpace("= "+strings.TrimPrefix(string(got), line)))
			}
		}
	}
	return out.String()
}

// Arguments as large as the agent takes them are checked and repaired within the bound
// on steps, which is for what is hostile.
func TestCheckRepairsLargeValidValues(t *testing.T) {
	s, err := Compile(json.RawMessage(`{"type":"object","properties":{"rows":{"type":"array","uniqueItems":true,"items":{"$ref":"#/$defs/row"}}},
		"$defs":{"row":{"type":"object","properties":{"id":{"type":"integer"},"tags":{"type":"array","items":{"enum":["a","b","c","d"]}},"v":{"anyOf":[{"type":"number"},{"type":"null"}]}},"required":["id"],"additionalProperties":false}}}`))
	if err != nil {
		t.Fatal(err)
	}
	var rows, want []string
	for i := range 64 << 10 / 50 {
		rows = append(rows, fmt.Sprintf(`{"id":"%d","tags":"[\"a\",\"d\"]","v":"null"}`, i))
		want = append(want, fmt.Sprintf(`{"id":%d,"tags":["a","d"],"v":null}`, i))
	}
	got, problems := s.Check(json.RawMessage(`{"rows":[` + strings.Join(rows, ",") + `]}`))
	if problems != nil || string(got) != `{"rows":[`+strings.Join(want, ",")+`]}` {
		t.Errorf("%v, want nil, %q", problems, `{"rows":[`+strings.Join(want, ",")+`]}`)
	}
}

// An instance that multiplies the alternatives at every level is given up, and said so.
func TestCheckBoundsItsWork(t *testing.T) {
	s, err := Compile(json.RawMessage(`{"properties":{"a":{"anyOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]}},"required":["b"]}`))
	if err != nil {
		t.Fatal(err)
	}
	_, problems := s.Check(json.RawMessage(strings.Repeat(`{"a":`, 60) + "1" + strings.Repeat("}", 60)))
	if len(problems) != 1 || !strings.HasPrefix(problems[0].Detail, "cannot be checked") {
		t.Errorf(`problems %v, want 1 with Detail starting with "cannot be checked"`, problems)
	}
	bomb := `{"$ref":"#/$defs/a0","$defs":{"a20":{}`
	for i := range 20 {
		bomb += fmt.Sprintf(`,"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]}`, i, i+1, i+1)
	}
	if _, err := Compile(json.RawMessage(bomb + `}}`)); err == nil || err.Error() != errTooManyAlternatives.Error() {
		t.Errorf("Compile of alternatives that multiply = %v, want errTooManyAlternatives", err)
	}
}
