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

// TestOnlyMainReadsTheEnvironmentAndExits keeps configuration in one place and lets
// every room end its work: nobody but cmd/server may stop the process, and there is no
// other command. A test binary that is a process for others may; bench and docker have
// helpers of their own, which are no part of the service.
func TestOnlyMainReadsTheEnvironmentAndExits(t *testing.T) {
	forbidden := map[string]bool{
		"os.Getenv": true, "os.LookupEnv": true, "os.Environ": true, "os.Exit": true,
		"log.Fatal": true, "log.Fatalf": true, "log.Fatalln": true,
	}
	check := func(path string, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") || filepath.Dir(path) == filepath.Join(root, "cmd/server") {
			return
		}
		if file.Name.Name == "main" {
			t.Errorf("%s is of a command beside cmd/server", path)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok && forbidden[pkg.Name+"."+sel.Sel.Name] {
					t.Errorf("%s uses %s.%s", path, pkg.Name, sel.Sel.Name)
				}
			}
			return true
		})
	}
	for _, dir := range []string{"api", "cmd", "internal"} {
		eachFile(t, dir, check)
	}
}

// TestTestsDoNotSleep: time in tests is testing/synctest's, and waiting is for
// something.
func TestTestsDoNotSleep(t *testing.T) {
	eachFile(t, ".", func(path string, file *ast.File) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" && sel.Sel.Name == "Sleep" {
					t.Errorf("%s sleeps", path)
				}
			}
			return true
		})
	})
}

// TestFilesStayReadable: a file that outgrows 500 lines hides a second noun.
func TestFilesStayReadable(t *testing.T) {
	eachFile(t, ".", func(path string, _ *ast.File) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(string(b), "\n"); lines > 500 {
			t.Errorf("%s has %d lines", path, lines)
		}
	})
}

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
