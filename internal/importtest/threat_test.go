package importtest

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityPageNamesExistingTests keeps the tests behind every defense that
// docs/security.md states: without its test a defense could be removed unnoticed.
func TestSecurityPageNamesExistingTests(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/security.md")
	if err != nil {
		t.Fatal(err)
	}

	existing := make(map[string]bool)
	for _, dir := range []string{"internal", "cmd"} {
		eachFile(t, dir, func(path string, file *ast.File) {
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasSuffix(path, "_test.go") {
					existing[f.Name.Name] = true
				}
			}
		})
	}

	named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1)
	if len(named) < 50 {
		t.Fatalf("got %d named tests, want at least 50", len(named))
	}

	for _, m := range named {
		if !existing[m[1]] {
			t.Errorf("docs/security.md names %s, want an existing test", m[1])
		}
	}
}
