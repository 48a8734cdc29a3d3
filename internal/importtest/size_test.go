package importtest

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

const (
	maxFiles    = 22 // of a package, tests not counted
	maxExported = 40 // names of a package that are not wire types
)

// wirePackages export a name for each type or code of a format, beyond maxExported.
var wirePackages = map[string]string{
	"internal/event": "one type for each event, as the API sends it",
}

// TestPackagesAreSmall bounds the files and the exported names of a package, so that one purpose still describes it.
// Values of an enumeration (constants that repeat its type) and names that a package passes on from another
// one (type aliases) are not counted.
func TestPackagesAreSmall(t *testing.T) {
	files, exported := map[string]int{}, map[string]int{}
	for _, dir := range []string{"cmd", "internal"} {
		eachFile(t, dir, func(path string, file *ast.File) {
			if strings.HasSuffix(path, "_test.go") {
				return
			}
			dir, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				t.Fatal(err)
			}
			files[dir]++
			exported[dir] += exportedNames(file)
		})
	}
	for dir, n := range files {
		if n > maxFiles {
			t.Errorf("%s: got %d files, want at most %d", dir, n, maxFiles)
		}
	}
	for dir, n := range exported {
		if n > maxExported && wirePackages[dir] == "" {
			t.Errorf("%s: got %d exported names, want at most %d", dir, n, maxExported)
		}
	}
}

// exportedNames counts the exported functions, types, variables and constants of a file.
func exportedNames(file *ast.File) int {
	n := 0
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.IsExported() {
				n++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() && !s.Assign.IsValid() {
						n++
					}
				case *ast.ValueSpec:
					for i, name := range s.Names {
						if name.IsExported() && !isEnumerationValue(d, s, i) {
							n++
						}
					}
				}
			}
		}
	}
	return n
}

// isEnumerationValue reports whether a constant has a named type, or passes on a constant of another package.
func isEnumerationValue(d *ast.GenDecl, s *ast.ValueSpec, i int) bool {
	if d.Tok != token.CONST {
		return false
	}
	if s.Type != nil || len(s.Values) == 0 { // typed, or repeating the one above
		return true
	}
	_, passedOn := s.Values[i].(*ast.SelectorExpr)
	return passedOn
}
