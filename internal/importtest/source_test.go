package importtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// TestEnvironmentAndExitAreOnlyUsedByMain keeps the configuration in one place and lets
// every package finish its work: only cmd/server may end the process, and there is no other
// command. A test binary that other tests start as a process may end itself. bench and
// docker have programs of their own, which are not part of the service.
func TestEnvironmentAndExitAreOnlyUsedByMain(t *testing.T) {
	forbidden := map[string]bool{
		"os.Getenv": true, "os.LookupEnv": true, "os.Environ": true, "os.Exit": true,
		"log.Fatal": true, "log.Fatalf": true, "log.Fatalln": true,
	}
	check := func(path string, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") || filepath.Dir(path) == filepath.Join(root, "cmd/server") {
			return
		}
		if file.Name.Name == "main" {
			t.Errorf("%s: got a command, want cmd/server as the only one", path)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok && forbidden[pkg.Name+"."+sel.Sel.Name] {
					t.Errorf("%s: got %s.%s, want it only in cmd/server", path, pkg.Name, sel.Sel.Name)
				}
			}
			return true
		})
	}
	for _, dir := range []string{"api", "cmd", "internal"} {
		eachFile(t, dir, check)
	}
}

// TestTestsDoNotSleep requires tests to use the fake time of testing/synctest, or to wait for
// an event.
func TestTestsDoNotSleep(t *testing.T) {
	eachFile(t, ".", func(path string, file *ast.File) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" && sel.Sel.Name == "Sleep" {
					t.Errorf("%s: got time.Sleep, want testing/synctest or waiting for an event", path)
				}
			}
			return true
		})
	})
}

// TestFilesHaveAtMost500Lines keeps one topic per file.
func TestFilesHaveAtMost500Lines(t *testing.T) {
	eachFile(t, ".", func(path string, _ *ast.File) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(string(b), "\n"); lines > 500 {
			t.Errorf("%s: got %d lines, want at most 500", path, lines)
		}
	})
}

// eachFile parses every Go file below dir and calls f with it.
func eachFile(t *testing.T, dir string, f func(path string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err == nil {
			f(path, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
