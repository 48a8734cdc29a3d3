package importtest

import (
	"go/ast"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackagesHaveAComment requires a package comment of every package, also of those that
// have only tests.
func TestPackagesHaveAComment(t *testing.T) {
	commented := map[string]bool{}
	for _, dir := range []string{"api", "bench", "cmd", "internal"} {
		eachFile(t, dir, func(path string, file *ast.File) {
			if name := file.Name.Name; strings.HasSuffix(name, "_test") && strings.HasSuffix(path, "_test.go") {
				return // an external test package is described by the package that it tests
			}
			commented[filepath.Dir(path)] = commented[filepath.Dir(path)] || file.Doc != nil
		})
	}
	if len(commented) < 30 {
		t.Errorf("found %d packages, want at least 30", len(commented))
	}
	for dir, ok := range commented {
		if !ok {
			t.Errorf("%s has no package comment, want one", dir)
		}
	}
}
