package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOfficialSuite runs the required part of the official JSON Schema test suite
// (json-schema.org/JSON-Schema-Test-Suite), as the module google/jsonschema-go has it:
// all files but content, format and vocabulary of 2020-12. testdata/suite.refused lists the schemas that Compile refuses, with its error.
func TestOfficialSuite(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/google/jsonschema-go").Output()
	if err != nil {
		t.Fatalf("finding the test suite: %v, want no error", err)
	}

	var refused bytes.Buffer
	for _, draft := range []string{"draft2020-12", "draft7"} {
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "jsonschema", "testdata", draft, "*.json"))
		if err != nil || len(files) < 35 {
			t.Fatalf("%s has %d files (%v), want 35 or more", draft, len(files), err)
		}
		n := 0
		for _, file := range files {
			n += runSuite(t, draft, file, &refused)
		}
		t.Logf("%s: %d files, %d values", draft, len(files), n)
	}

	const golden = "testdata/suite.refused"
	if *update {
		if err := os.WriteFile(golden, refused.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got := refused.String(); got != string(want) {
		t.Errorf("refused schemas:\n%s\nwant:\n%s", got, want)
	}
}

// runSuite checks the values of one file and returns how many there are.
func runSuite(t *testing.T, draft, file string, refused *bytes.Buffer) (values int) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	var groups []struct {
		Description string
		Schema      json.RawMessage
		Tests       []struct {
			Description string
			Data        json.RawMessage
			Valid       bool
		}
	}
	if err := json.Unmarshal(data, &groups); err != nil {
		t.Fatalf("%s: got %v, want no error", file, err)
	}

	for _, g := range groups {
		name := fmt.Sprintf("%s/%s: %s", draft, filepath.Base(file), g.Description)
		raw := g.Schema
		if draft == "draft7" && raw[0] == '{' { // files of draft-07 don't say that they are
			rest := bytes.TrimSpace(raw[1:])
			if rest[0] != '}' {
				rest = append([]byte{','}, rest...)
			}
			raw = append([]byte(`{"$schema":"http://json-schema.org/draft-07/schema#"`), rest...)
		}

		s, err := Compile(raw)
		if err != nil {
			fmt.Fprintf(refused, "%s: %v\n", name, err)
			continue
		}

		for _, test := range g.Tests {
			values++
			if problems := s.Validate(test.Data); (problems == nil) != test.Valid {
				t.Errorf("%s: %s: got problems %v, want valid = %v", name, test.Description, problems, test.Valid)
			}
		}
	}
	return values
}
