package importtest

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pagesOf calls f with every document of the project.
func pagesOf(t *testing.T, f func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".venv")) {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(path, string(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDocumentsNameExistingFiles keeps the paths in documents, such as those of docs/internals/where.md, up to date.
func TestDocumentsNameExistingFiles(t *testing.T) {
	named := regexp.MustCompile("`((?:internal|cmd|bench|docs|api|deploy)/[\\w./-]+\\.(?:go|md|yaml|json))(?::\\d+)?`")
	count := 0
	pagesOf(t, func(page, text string) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			count++
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s, want a file that exists", page, m[1])
			}
		}
	})
	if count < 80 {
		t.Errorf("found %d paths in documents, want at least 80", count)
	}
}

// TestReferencesAreDefined requires a row in docs/internals for every reference such as S3.4 or F16 in a comment.
func TestReferencesAreDefined(t *testing.T) {
	defined := map[string]bool{}
	for _, page := range []string{"behaviours.md", "faults.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs/internals", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\| \**([SF]\d+(?:\.\d+)?)\b`).FindAllStringSubmatch(string(text), -1) {
			defined[m[1]] = true
		}
	}
	reference := regexp.MustCompile(`\b(S[0-4]\.\d+|F\d{1,2})\b`)
	for _, dir := range []string{"bench", "cmd", "internal", "docs"} {
		eachFile(t, dir, func(path string, file *ast.File) {
			for _, group := range file.Comments {
				for _, m := range reference.FindAllString(group.Text(), -1) {
					name := m
					if strings.HasPrefix(m, "F0") {
						name = "F" + strings.TrimPrefix(m, "F0")
					}
					if !defined[name] && !defined[m] {
						t.Errorf("%s: a comment refers to %s, want a row in docs/internals", path, m)
					}
				}
			}
		})
	}
}

// TestArchitectureNamesEveryPackage requires every package with code of the binary in the tables of
// docs/architecture.md. There, internal/api/{chat,agui} stands for two packages.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}

	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`((?:cmd|internal)/[\\w/]*)(?:\\{([\\w,]+)\\})?`").FindAllStringSubmatch(string(page), -1) {
		for _, name := range strings.Split(m[2], ",") {
			named[m[1]+name] = true
		}
	}

	for _, dir := range []string{"cmd", "internal"} {
		eachFile(t, dir, func(path string, file *ast.File) {
			rel, err := filepath.Rel(root, filepath.Dir(path))
			helper := strings.HasSuffix(path, "_test.go") || strings.HasSuffix(file.Name.Name, "test") || file.Name.Name == "main" && rel != "cmd/server"
			if err != nil || helper || rel == "internal/api/scenario" || named[rel] {
				return
			}
			named[rel] = true // once is enough
			t.Errorf("docs/architecture.md does not name %s, want a row", rel)
		})
	}
}
