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
			got := runCases(string(want))
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
func runCases(file string) string {
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

// A value that multiplies the alternatives at every level is not checked to the end, which is reported.
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

// Items that differ only in where one text ends and the next begins are compared by their hashes, and not
// in pairs, which would take more steps than Check may take.
func TestCheckTellsItemsOfTheSameTextApart(t *testing.T) {
	s, err := Compile(json.RawMessage(`{"uniqueItems":true}`))
	if err != nil {
		t.Fatal(err)
	}

	const items = 1000
	all := map[string]func(i int) string{
		"strings": func(i int) string { // each bit says whether a string ends there; 0x10 is the kind of a string
			text := `["a`
			for bit := range 10 {
				text += []string{`","a`, `\u0010a`}[i>>bit&1]
			}
			return text + `"]`
		},
		"nested arrays": func(i int) string { // they all end at the end, and begin where the digits of i say
			a, b, c := i/100, i/10%10, i%10
			return "[1" + strings.Repeat(",1", a) + ",[1" + strings.Repeat(",1", b) + ",[1" + strings.Repeat(",1", c) + ",[1" + strings.Repeat(",1", 27-a-b-c) + "]]]]"
		},
		"members": func(i int) string {
			return `{"` + strings.Repeat("a", i) + `":"` + strings.Repeat("a", items-i) + `"}`
		},
	}

	for name, item := range all {
		var list []string
		for i := range items {
			list = append(list, item(i))
		}
		if _, problems := s.Check(json.RawMessage("[" + strings.Join(list, ",") + "]")); problems != nil {
			t.Errorf("%s: got problems %v, want none", name, problems)
		}
		last := json.RawMessage("[" + strings.Join(append(list, list[0]), ",") + "]")
		if _, problems := s.Check(last); len(problems) != 1 || problems[0].Detail != "items 0 and 1000 are equal, all must differ" {
			t.Errorf("%s and the first one again: got problems %v, want that items 0 and 1000 are equal", name, problems)
		}
	}
}

// In draft-04 exclusiveMinimum and exclusiveMaximum are booleans that say whether minimum and maximum are allowed
// themselves (draft-04 validation, 5.1.2 and 5.1.3). In later drafts they are numbers.
func TestCompileReadsExclusiveBoundsOfDraft04(t *testing.T) {
	const draft04, bounds = `"$schema":"http://json-schema.org/draft-04/schema#"`, `"minimum":0,"maximum":9`
	for keywords, want := range map[string]string{
		draft04 + `,` + bounds + `,"exclusiveMinimum":true,"exclusiveMaximum":true`:   "1 8",
		draft04 + `,` + bounds + `,"exclusiveMinimum":false,"exclusiveMaximum":false`: "0 1 8 9",
		draft04 + `,` + bounds + `,"exclusiveMaximum":true`:                           "0 1 8",
		draft04 + `,"exclusiveMinimum":true`:                                          "-1 0 1 8 9 10", // nothing to exclude
		draft04 + `,"exclusiveMinimum":0`:                                             "1 8 9 10",      // as written by mistake
	} {
		s, err := Compile([]byte(`{` + keywords + `}`))
		if err != nil {
			t.Errorf("%s: got %v, want no error", keywords, err)
			continue
		}
		var valid []string
		for _, value := range []string{"-1", "0", "1", "8", "9", "10"} {
			if s.Validate([]byte(value)) == nil {
				valid = append(valid, value)
			}
		}
		if got := strings.Join(valid, " "); got != want {
			t.Errorf("%s: got the valid values %s, want %s", keywords, got, want)
		}
	}
	for _, raw := range []string{`{"minimum":0,"exclusiveMinimum":true}`, `{"$schema":"http://json-schema.org/draft-07/schema#","minimum":0,"exclusiveMinimum":true}`} {
		if _, err := Compile([]byte(raw)); err == nil {
			t.Errorf("%s: got no error, want one: later drafts have numbers", raw)
		}
	}
}
