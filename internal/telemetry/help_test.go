package telemetry

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestHelpOfLogLinesIsAPage checks that every page of helpPages exists, with the heading of its anchor.
func TestHelpOfLogLinesIsAPage(t *testing.T) {
	for message, page := range helpPages {
		path, anchor, _ := strings.Cut(page, "#")
		text, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Errorf("%q: got error %v, want a page", message, err)
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
			t.Errorf("%q: %s has no heading #%s, want one", message, path, anchor)
		}
	}
}

// TestHelpPagesAreOfMessagesInTheCode keeps a message from losing its page when it is reworded.
func TestHelpPagesAreOfMessagesInTheCode(t *testing.T) {
	literals := map[string]bool{}
	for _, dir := range []string{"../../cmd", "../../internal"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "help.go" {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil {
						literals[text] = true
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for message := range helpPages {
		if !literals[message] {
			t.Errorf("got no line %q in the code, want one for each entry of helpPages", message)
		}
	}
}

func TestWarningsAndErrorsHaveHelp(t *testing.T) {
	var out bytes.Buffer
	logger, err := NewLogger(&out, "info", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		log  func()
		want any
	}{
		{func() { logger.Warn("MCP server is down") }, pageServers},
		{func() { logger.With("mcp_server", "a").Error("MCP server is down") }, pageServers},
		{func() { logger.WithGroup("g").Warn("MCP server is down", "a", 1) }, pageServers},
		{func() { logger.Error("something else") }, pageTroubleshooting},
		{func() { logger.Error("something else", "help", "docs/rules.md") }, "docs/rules.md"},
		{func() { logger.Info("MCP server is down") }, nil},
	} {
		out.Reset()
		c.log()
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if line["help"] != c.want || strings.Count(out.String(), `"help"`) > 1 {
			t.Errorf("got %s, want help %v once", out.String(), c.want)
		}
	}
}
