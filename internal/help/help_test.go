package help

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestPagesExist(t *testing.T) {
	pages := declaredPages(t)
	if len(pages) < 20 {
		t.Fatalf("got %d pages, want all those of help.go", len(pages))
	}
	for _, page := range pages {
		path, anchor, _ := strings.Cut(page, "#")
		text, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Errorf("%s: %v, want a page", page, err)
			continue
		}
		if anchor == "" {
			continue
		}

		found := false
		for line := range strings.Lines(string(text)) {
			title := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
			title = strings.NewReplacer(" ", "-", ",", "").Replace(title)
			found = found || strings.HasPrefix(line, "#") && title == anchor
		}
		if !found {
			t.Errorf("%s has no heading #%s, want one", path, anchor)
		}
	}
}

// declaredPages returns the values of the constants of type Page.
func declaredPages(t *testing.T) (pages []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "help.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if named, ok := spec.Type.(*ast.Ident); ok && named.Name == "Page" {
			page, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			pages = append(pages, page)
		}
		return true
	})
	return pages
}
