package importtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// TestFailureMessagesSayWhatWasWanted requires the word want in every failure message of a test
// that prints a value, so that a failure is understood without reading the test. A message below
// "if err != nil" needs none, and neither does the error of a function that returned one.
func TestFailureMessagesSayWhatWasWanted(t *testing.T) {
	eachFile(t, ".", func(path string, file *ast.File) {
		if !imports(file, "testing") {
			return
		}
		var below []ast.Node
		ast.Inspect(file, func(n ast.Node) bool {
			if n == nil {
				below = below[:len(below)-1]
				return true
			}
			below = append(below, n)
			if call, ok := n.(*ast.CallExpr); ok && isFailure(call) && printsValue(call) && !saysWant(call) && !isBelowError(below) {
				t.Errorf("%s: got the failure message %s, want it to print got and want", path, types.ExprString(call))
			}
			return true
		})
	})
}

// imports reports whether file imports the package at path.
func imports(file *ast.File, path string) bool {
	return slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(path) })
}

// isFailure reports whether call is t.Error, Errorf, Fatal or Fatalf with arguments. Those of other
// packages, such as fmt.Errorf, are not, and neither is the Error of a logger that a call returned.
func isFailure(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 || !slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf"}, sel.Sel.Name) {
		return false
	}
	switch on := sel.X.(type) {
	case *ast.Ident:
		return slices.Contains([]string{"t", "b", "f", "tb"}, on.Name)
	case *ast.SelectorExpr:
		return slices.Contains([]string{"t", "b", "f", "tb"}, on.Sel.Name)
	}
	return false
}

// printsValue reports whether an argument of call is not a text.
func printsValue(call *ast.CallExpr) bool {
	return slices.ContainsFunc(call.Args, func(arg ast.Expr) bool {
		_, text := arg.(*ast.BasicLit)
		return !text
	})
}

var wantWord = regexp.MustCompile(`(\b|\\n)want`)

// saysWant reports whether the text of call has the word want, or a variable of that name.
func saysWant(call *ast.CallExpr) bool { return wantWord.MatchString(types.ExprString(call)) }

// isBelowError reports whether the innermost branch of the path is "if err != nil", or whether there
// is none and the last node is t.Fatal(err).
func isBelowError(path []ast.Node) bool {
	for i := len(path) - 2; i >= 0; i-- {
		switch n := path[i].(type) {
		case *ast.IfStmt:
			name, ok := strings.CutSuffix(types.ExprString(n.Cond), " != nil")
			return ok && strings.HasSuffix(strings.ToLower(name), "err")
		case *ast.FuncLit:
			i = 0
		}
	}
	call := path[len(path)-1].(*ast.CallExpr)
	return len(call.Args) == 1 && strings.HasSuffix(strings.ToLower(types.ExprString(call.Args[0])), "err")
}

// parsed has the files that were parsed, since many tests read all of them. The tests run one at a time.
var parsed = make(map[string]*ast.File)

// fileSet has the positions of these files.
var fileSet = token.NewFileSet()

// eachFile parses every Go file below dir and calls f with it.
func eachFile(t *testing.T, dir string, f func(path string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".venv")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		file := parsed[path]
		if file == nil {
			if file, err = parser.ParseFile(fileSet, path, nil, parser.ParseComments); err != nil {
				return err
			}
			parsed[path] = file
		}
		f(path, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
