package importtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	codeBlock    = regexp.MustCompile("(?ms)^```.*?^```$")
	inlineCode   = regexp.MustCompile("`[^`\n]*`")
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
)

// TestDocumentsLinkToExistingPages checks every relative link of every document, and its anchor
// if it has one. Links to other hosts are not requested.
func TestDocumentsLinkToExistingPages(t *testing.T) {
	anchors := map[string]map[string]bool{}
	pagesOf(t, func(page, text string) { anchors[filepath.Clean(page)] = anchorsOf(text) })

	count := 0
	pagesOf(t, func(page, text string) {
		text = inlineCode.ReplaceAllString(codeBlock.ReplaceAllString(text, ""), "")
		for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, ":") {
				continue
			}
			count++
			target := filepath.Clean(page)
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}

			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, want a file that exists", page, m[1])
			} else if anchor != "" && !anchors[target][anchor] {
				t.Errorf("%s links to %s, want a heading with this anchor", page, m[1])
			}
		}
	})

	if count < 100 {
		t.Errorf("found %d relative links, want at least 100", count)
	}
}

// anchorsOf returns the anchors of a page's headings as GitHub makes them: lower case, spaces
// as hyphens, without punctuation.
func anchorsOf(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		anchors[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])] = true
	}
	return anchors
}

// TestReadmeIsShort keeps the README an introduction: what is longer belongs into docs.
func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(text), "\n"); lines > 200 {
		t.Errorf("README.md has %d lines, want at most 200", lines)
	}
}
