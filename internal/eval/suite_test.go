package eval

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v3"

	"answerd/api"
)

var update = flag.Bool("update", false, "write the golden files")

// readSuites returns the files of a directory in testdata by their names.
func readSuites(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
	if err != nil || len(paths) < 3 {
		t.Fatalf("got %d suites in %s, %v, want at least 3", len(paths), dir, err)
	}
	files := make(map[string][]byte)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(path)] = data
	}
	return files
}

// readExport returns the exports that suites in testdata name.
func readExport(name string) ([]byte, error) {
	switch filepath.Base(name) {
	case "run.json":
		return []byte(`{"version": 1, "run": {"agent": "support"}, "request": {"question": "What was asked?"}}`), nil
	case "no_export.json":
		return []byte(`{"events": []}`), nil
	}
	return nil, errors.New("no such file")
}

var fileOptions = FileOptions{Name: "suite.yaml", Dir: "testdata", ReadFile: readExport}

func TestParseFillsInDefaults(t *testing.T) {
	s, err := Parse(readSuites(t, "good")["everything.yaml"], fileOptions)
	if err != nil {
		t.Fatal(err)
	}

	if s.Name != "everything" || len(s.Cases) != 2 || *s.Judge != (Judge{Model: "big", Agent: "judge"}) {
		t.Fatalf("got %+v, want the suite everything with a judge and two cases", s)
	}
	if c := s.Cases[0]; c.Runs != 2 || c.Pass != 1 || c.Approve || c.Line != 7 || c.Question != "Two lines,\none question\n" || len(c.Expect.Contains) != 2 || len(c.Expect.Matches) != 1 {
		t.Errorf("got %+v, want the values of the case at line 7", c)
	}
	if got, want := s.Cases[0].Expect.JSON, map[string]json.RawMessage{"": json.RawMessage(`{"a":[1,2.5,null]}`), "/a/0": json.RawMessage("1"), "/a~1b": json.RawMessage(`"2026-01-02"`)}; !reflect.DeepEqual(got, want) {
		t.Errorf("JSON = %v, want %v", got, want)
	}
	if c := s.Cases[1]; c.Runs != 5 || c.Pass != 0.8 || !c.Approve || c.Question != "What was asked?" || c.Agent != "support" {
		t.Errorf("got %+v, want the values of the suite, and the question and the agent of the export", c)
	}
	minimal, err := Parse(readSuites(t, "good")["minimal.yaml"], fileOptions)
	if err != nil || minimal.Name != "suite.yaml" || minimal.Cases[0].Runs != 1 || minimal.Cases[0].Pass != 1 || minimal.Cases[0].Approve {
		t.Errorf("got %+v, %v, want one run that must pass, and no approval", minimal, err)
	}
}

// TestParseRefusesBadSuites compares the errors with testdata/bad.golden: each names the line, and the
// case if there is one.
// JSON Schema counts 2.0 and 2e0 as integers, so editors accept them.
func TestParseAcceptsIntegersWithAFraction(t *testing.T) {
	s, err := Parse([]byte("runs: 3.0\ncases: [{name: a, question: a, expect: {contains: a}}, {name: b, question: b, runs: 2e0, expect: {contains: b}}]"), FileOptions{})
	if err != nil || s.Cases[0].Runs != 3 || s.Cases[1].Runs != 2 {
		t.Errorf("got %+v, %v, want 3 and 2 runs", s.Cases, err)
	}
}

func TestParseRefusesBadSuites(t *testing.T) {
	var b strings.Builder
	files := readSuites(t, "bad")
	names, err := filepath.Glob("testdata/bad/*.yaml") // sorted
	if err != nil {
		t.Fatal(err)
	}

	for _, path := range names {
		name := filepath.Base(path)
		_, err := Parse(files[name], fileOptions)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v, want an *Error", name, err)
			continue
		}
		if e.Line == 0 && name != "empty.yaml" {
			t.Errorf("%s: got %v, want the line", name, err)
		}
		b.WriteString(strings.TrimSuffix(name, ".yaml") + ": " + err.Error() + "\n")
	}
	checkGolden(t, "bad.golden", []byte(b.String()))
}

// TestSchemaAgreesWithParse checks the suites with another implementation of JSON Schema: editors accept
// what Parse accepts, and refuse what it refuses. The names of files begin with beyond_ if a schema cannot
// express their mistake, and with yaml_ if it is one of YAML.
func TestSchemaAgreesWithParse(t *testing.T) {
	var s jsonschema.Schema
	if err := json.Unmarshal(api.EvalSchema, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}

	for _, dir := range []string{"good", "bad"} {
		for name, data := range readSuites(t, dir) {
			if strings.HasPrefix(name, "yaml_") {
				continue
			}
			var value any
			if err := yaml.Unmarshal(data, &value); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			raw, err := json.Marshal(value) // dates and whole numbers as an editor has them
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}

			if err := json.Unmarshal(raw, &value); err != nil {
				t.Fatal(err)
			}
			err = resolved.Validate(value)
			if want := dir == "good" || strings.HasPrefix(name, "beyond_"); (err == nil) != want {
				t.Errorf("%s: the schema says %v, want valid = %v", name, err, want)
			}
			if _, err := Parse(data, fileOptions); (err == nil) != (dir == "good") {
				t.Errorf("%s: Parse says %v, want valid = %v", name, err, dir == "good")
			}
		}
	}
}

// FuzzParse: any bytes for a suite. It is refused with a printable line, or has cases that can be run.
func FuzzParse(f *testing.F) {
	for _, dir := range []string{"good", "bad"} {
		for _, data := range readSuites(f, dir) {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data, fileOptions)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || strings.ContainsAny(err.Error(), "\n\x1b\x00") {
				t.Fatalf("got %q, want an *Error on one printable line", err)
			}
			return
		}
		if len(s.Cases) == 0 {
			t.Fatal("got no cases, want at least one")
		}
		for _, c := range s.Cases {
			if c.Name == "" || strings.TrimSpace(c.Question) == "" || c.Runs < 1 || c.Runs > 100 || c.Pass <= 0 || c.Pass > 1 || c.Line < 1 {
				t.Fatalf("got %+v, want a case that can be run", c)
			}
			if c.Expect.Rubric != "" && s.Judge == nil {
				t.Fatalf("got a rubric without a judge, want an error")
			}
		}
	})
}
