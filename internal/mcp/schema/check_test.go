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

// S1.5. Each file is a table: schemas, and what becomes of values. A value is followed by
// what it is repaired to (=), which is nothing where it fits as it is, or by what is
// wrong with it (!).
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".golden"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("the golden file differs:\n%s", got)
			}
		})
	}
}

// play is the file with the outcomes written anew.
func play(t *testing.T, file string) string {
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
