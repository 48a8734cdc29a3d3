package openai

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestPublicTextsSayWhatToDoNext goes over every text for callers, as the source has them.
func TestPublicTextsSayWhatToDoNext(t *testing.T) {
	step := regexp.MustCompile(`\. (Ask|Name|Shorten|Its operator) `)
	count := 0
	for _, path := range []string{"errors.go", "../texttool/extractor.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(spec.Names[0].Name, "public") {
				return true
			}
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			count++
			if !step.MatchString(text) {
				t.Errorf("%s: got %q, want a next step after the first sentence", spec.Names[0].Name, text)
			}
			return false
		})
	}
	if count < 18 {
		t.Errorf("got %d texts, want at least 18", count)
	}
}
