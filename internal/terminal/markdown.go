package terminal

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	table "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
	"golang.org/x/text/width"
)

// markdown parses CommonMark with the tables of GitHub, but without link reference definitions: the link is in another
// block as a rule, which is on the terminal already, and the parser drops the text of a definition. So both stay text.
var markdown = goldmark.New(
	goldmark.WithParser(parser.NewParser(parser.WithBlockParsers(parser.DefaultBlockParsers()...), parser.WithInlineParsers(parser.DefaultInlineParsers()...))),
	goldmark.WithExtensions(extension.Table, extension.Strikethrough),
)

// markdownWriter renders Markdown block by block, so that an answer still appears as it streams. A
// block ends at a blank line outside of fenced code.
type markdownWriter struct {
	w       io.Writer
	pending string // text of the block that has not ended
	wrote   bool   // a block was written, so the next one needs a blank line before it
}

// write renders the blocks that end with delta, and keeps the rest.
func (m *markdownWriter) write(delta string) error {
	m.pending += delta
	for {
		end := blockEnd(m.pending)
		if end < 0 {
			return nil
		}
		block := m.pending[:end]
		m.pending = m.pending[end:]
		if err := m.render(block); err != nil {
			return err
		}
	}
}

// end renders what is left as a block. A fence that is still open ends there.
func (m *markdownWriter) end() error {
	block := m.pending
	m.pending = ""
	return m.render(block)
}

// render writes a block.
func (m *markdownWriter) render(block string) error {
	if strings.TrimSpace(block) == "" {
		return nil
	}
	out := renderMarkdown(PlainText(block))
	if m.wrote {
		out = "\n" + out
	}
	m.wrote = true
	_, err := io.WriteString(m.w, out)
	return err
}

// blockEnd returns the offset after the first blank line outside of fenced code; -1 if there is
// none yet.
func blockEnd(source string) int {
	open, offset := "", 0
	for line := range strings.Lines(source) {
		offset += len(line)
		trimmed := strings.TrimSpace(line)
		fence, info := cutFence(trimmed)
		switch {
		case open == "" && fence != "":
			open = fence
		case open != "" && strings.HasPrefix(fence, open) && info == "":
			open = ""
		case open == "" && trimmed == "" && strings.HasSuffix(line, "\n") && strings.TrimSpace(source[:offset]) != "":
			return offset
		}
	}
	return -1
}

// cutFence returns the code fence that a line begins with, and what follows it; "" if it begins with none. By
// section 4.5 of CommonMark, a fence has three or more backticks or tildes, and no backtick follows a fence of
// backticks. The fence that ends a block has at least as many of the same characters, and nothing follows it.
func cutFence(line string) (fence, info string) {
	for _, character := range []string{"`", "~"} {
		info = strings.TrimLeft(line, character)
		if n := len(line) - len(info); n >= 3 && (character == "~" || !strings.Contains(info, character)) {
			return line[:n], info
		}
	}
	return "", ""
}

// renderMarkdown returns Markdown as text for a terminal, with a line feed at its end.
func renderMarkdown(source string) string {
	r := &renderer{source: []byte(source)}
	return strings.TrimRight(r.renderBlocks(markdown.Parser().Parse(text.NewReader(r.source)), "\n\n"), "\n") + "\n"
}

// renderer renders the nodes of one document.
type renderer struct{ source []byte }

// renderBlocks returns the child blocks of the node, with separator between them.
func (r *renderer) renderBlocks(n ast.Node, separator string) string {
	var parts []string
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		parts = append(parts, r.renderBlock(child))
	}
	return strings.Join(parts, separator)
}

// renderBlock returns one block without a line feed at its end.
func (r *renderer) renderBlock(node ast.Node) string {
	switch n := node.(type) {
	case *ast.Heading:
		return styleBold + r.inline(n) + styleReset
	case *ast.ThematicBreak:
		return styleDim + strings.Repeat("─", 40) + styleReset
	case *ast.Blockquote:
		return prefixLines(r.renderBlocks(n, "\n\n"), styleDim+"│ "+styleReset, styleDim+"│ "+styleReset)
	case *ast.List:
		return r.list(n)
	case *ast.FencedCodeBlock, *ast.CodeBlock, *ast.HTMLBlock:
		var code strings.Builder
		for i := range n.Lines().Len() {
			segment := n.Lines().At(i)
			code.Write(segment.Value(r.source))
		}
		if h, ok := n.(*ast.HTMLBlock); ok && h.HasClosure() { // the line that ends it is not among its lines
			code.Write(h.ClosureLine.Value(r.source))
		}
		return prefixLines(strings.TrimRight(code.String(), "\n"), "    "+styleCode, "    ") + styleReset
	case *table.Table:
		return r.table(n)
	}
	return r.inline(node)
}

// list returns a list with its bullets or numbers. Nested blocks are indented below them.
func (r *renderer) list(n *ast.List) string {
	separator := "\n"
	if !n.IsTight {
		separator = "\n\n"
	}
	var items []string
	number := n.Start
	for item := n.FirstChild(); item != nil; item = item.NextSibling() {
		bullet := "• "
		if n.IsOrdered() {
			bullet = fmt.Sprintf("%d. ", number)
			number++
		}
		items = append(items, prefixLines(r.renderBlocks(item, separator), bullet, strings.Repeat(" ", utf8.RuneCountInString(bullet))))
	}
	return strings.Join(items, separator)
}

// table returns a table with columns of equal width.
func (r *renderer) table(n *table.Table) string {
	var rows [][]string
	var widths []int
	for row := n.FirstChild(); row != nil; row = row.NextSibling() {
		var cells []string
		for cell := row.FirstChild(); cell != nil; cell = cell.NextSibling() {
			content := r.inline(cell)
			if len(widths) == len(cells) {
				widths = append(widths, 0)
			}
			widths[len(cells)] = max(widths[len(cells)], visibleWidth(content))
			cells = append(cells, content)
		}
		rows = append(rows, cells)
	}
	var lines []string
	for i, cells := range rows {
		for j, cell := range cells {
			cells[j] = cell + strings.Repeat(" ", widths[j]-visibleWidth(cell))
		}
		line := strings.TrimRight(strings.Join(cells, "  "), " ")
		if i == 0 {
			line = styleBold + line + styleReset
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// visibleWidth returns the number of columns that text takes, without its styles: two for most emoji and for East Asian
// wide characters (Unicode Standard Annex #11), none for combining marks and for what joins emoji.
func visibleWidth(text string) int {
	columns, style := 0, false
	for _, r := range text {
		switch {
		case r == '\x1b':
			style = true
		case style:
			style = r != 'm'
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		default:
			columns++
			if kind := width.LookupRune(r).Kind(); kind == width.EastAsianWide || kind == width.EastAsianFullwidth {
				columns++
			}
		}
	}
	return columns
}

// inline returns the text of a block: its words, emphasis, code and links.
func (r *renderer) inline(n ast.Node) string {
	var b strings.Builder
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		switch c := child.(type) {
		case *ast.Text:
			b.WriteString(textOf(c.Segment.Value(r.source)))
			if c.SoftLineBreak() || c.HardLineBreak() {
				b.WriteByte('\n')
			}
		case *ast.String:
			b.Write(c.Value)
		case *ast.CodeSpan:
			b.WriteString(styleCode + r.inline(c) + styleReset)
		case *ast.Emphasis:
			style := styleItalic
			if c.Level > 1 {
				style = styleBold
			}
			b.WriteString(style + r.inline(c) + styleReset)
		case *table.Strikethrough:
			b.WriteString(styleStrike + r.inline(c) + styleReset)
		case *ast.Link:
			b.WriteString(r.inline(c) + styleDim + " (" + string(c.Destination) + ")" + styleReset)
		case *ast.Image:
			b.WriteString(r.inline(c) + styleDim + " (" + string(c.Destination) + ")" + styleReset)
		case *ast.AutoLink:
			b.Write(c.URL(r.source))
		case *ast.RawHTML:
			for i := range c.Segments.Len() {
				segment := c.Segments.At(i)
				b.Write(segment.Value(r.source))
			}
		default:
			b.WriteString(r.inline(c))
		}
	}
	return b.String()
}

// textOf resolves backslash escapes and character references. A reference can stand for a control
// character, so the result is cleaned once more.
func textOf(source []byte) string {
	return PlainText(string(util.UnescapePunctuations(util.ResolveEntityNames(util.ResolveNumericReferences(source)))))
}

// prefixLines puts first before the first line of text, and rest before the others.
func prefixLines(text, first, rest string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		prefix := rest
		if i == 0 {
			prefix = first
		}
		lines[i] = prefix + line
	}
	return strings.Join(lines, "\n")
}
