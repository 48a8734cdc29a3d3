package importtest

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// runFlag matches the pattern of a -run or -bench flag of go test in a script.
var runFlag = regexp.MustCompile(`-(?:run|bench)[ =]'?([^'\s]+)`)

// TestScriptsRunExistingTests checks that every alternative of a -run pattern in the Makefile and in scripts matches a test.
// go test reports success when a pattern matches nothing, so a renamed test would silently no longer run.
func TestScriptsRunExistingTests(t *testing.T) {
	var tests []string
	for _, dir := range []string{"bench", "cmd", "internal", "docs"} {
		eachFile(t, dir, func(path string, file *ast.File) {
			for _, decl := range file.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasSuffix(path, "_test.go") {
					tests = append(tests, f.Name.Name)
				}
			}
		})
	}

	patterns := 0
	check := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range runFlag.FindAllStringSubmatch(string(text), -1) {
			for _, alternative := range strings.Split(m[1], "|") {
				pattern, err := regexp.Compile(alternative)
				if err != nil || strings.Trim(alternative, "^$") == "" || strings.ContainsAny(alternative, `$"`) && !strings.HasSuffix(alternative, "$") {
					continue // no test at all (^$), or a variable of the script
				}
				patterns++
				found := false
				for _, name := range tests {
					found = found || pattern.MatchString(name)
				}
				if !found {
					t.Errorf("%s runs %q, want the name of a test", path, alternative)
				}
			}
		}
	}

	check(filepath.Join(root, "Makefile"))
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".venv")) {
			return fs.SkipDir
		}
		if filepath.Ext(path) == ".sh" {
			check(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if patterns < 10 {
		t.Errorf("found %d patterns, want at least 10", patterns)
	}
}
