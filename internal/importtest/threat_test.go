package importtest

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

// A defence whose test is gone is one that nobody would miss.
func TestEveryThreatNamesTestsThatThereAre(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	there := make(map[string]bool)
	for _, dir := range []string{"internal", "cmd"} {
		eachFile(t, dir, func(path string, file *ast.File) {
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasSuffix(path, "_test.go") {
					there[f.Name.Name] = true
				}
			}
		})
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1)
	if len(named) < 50 {
		t.Fatalf("%d tests are named: nothing was proved", len(named))
	}
	for _, m := range named {
		if !there[m[1]] {
			t.Errorf("there is no %s", m[1])
		}
	}
}
