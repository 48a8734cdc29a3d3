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

// markdown parses CommonMark with GitHub's tables and strikethrough, but without link reference definitions. The link
// that uses a definition is usually in another block, which is already on the terminal. So both are shown as written;
// the parser would remove the definition from the text.
var markdown = goldmark.New(
	goldmark.WithParser(parser.NewParser(parser.WithBlockParsers(parser.DefaultBlockParsers()...), parser.WithInlineParsers(parser.DefaultInlineParsers()...))),
	goldmark.WithExtensions(extension.Table, extension.Strikethrough),
)

// markdownWriter renders Markdown block by block, so that an answer appears while it streams. A block ends at a blank
// line outside of fenced code.
type markdownWriter struct {
	w       io.Writer
	pending string // text of the incomplete block
	wrote   bool   // a block was written, so a blank line must precede the next block
}

// write appends delta to the text and renders the blocks that are now complete.
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

// end renders the remaining text as a block, even if its fenced code is not closed. The writer can be used again after
// end.
func (m *markdownWriter) end() error {
	block := m.pending
	m.pending = ""
	return m.render(block)
}

// render writes one block to m.w as text with styles. It separates blocks by a blank line, and skips a block that is
// only white space.
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

// blockEnd returns the length of the first block in source, including the blank line that ends it. It returns -1 if the
// block is incomplete, which means that source has no blank line outside of fenced code after the block's text. Leading
// blank lines belong to the block.
func blockEnd(source string) int {
	openFence := "" // fence that opened the current code; "" outside of fenced code
	offset := 0     // end of the current line
	for line := range strings.Lines(source) {
		offset += len(line)
		trimmed := strings.TrimSpace(line)
		fence, info := cutFence(trimmed)
		switch {
		case openFence == "" && fence != "":
			openFence = fence
		case openFence != "" && strings.HasPrefix(fence, openFence) && info == "":
			openFence = ""
		case openFence == "" && trimmed == "" && strings.HasSuffix(line, "\n") && strings.TrimSpace(source[:offset]) != "":
			return offset
		}
	}
	return -1
}

// cutFence splits a line into the code fence at its start and the text after the fence. fence is "" if the line does
// not begin with one. A fence has three or more backticks or tildes, and a fence of backticks has no backtick after it
// (CommonMark section 4.5). A closing fence has at least as many of the same characters as the opening one, and no text
// after it.
func cutFence(line string) (fence, info string) {
	for _, character := range []string{"`", "~"} {
		info = strings.TrimLeft(line, character)
		if n := len(line) - len(info); n >= 3 && (character == "~" || !strings.Contains(info, character)) {
			return line[:n], info
		}
	}
	return "", ""
}

// renderMarkdown renders source as text for a terminal, with exactly one line feed at the end.
func renderMarkdown(source string) string {
	r := &renderer{source: []byte(source)}
	document := markdown.Parser().Parse(text.NewReader(r.source))
	return strings.TrimRight(r.renderBlocks(document, "\n\n"), "\n") + "\n"
}

// renderer renders the nodes of one document. The nodes refer to the document's source.
type renderer struct{ source []byte }

// renderBlocks returns the text of n's child blocks, joined by separator.
func (r *renderer) renderBlocks(n ast.Node, separator string) string {
	var parts []string
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		parts = append(parts, r.renderBlock(child))
	}
	return strings.Join(parts, separator)
}

// renderBlock returns the text of one block, without a line feed at the end.
func (r *renderer) renderBlock(node ast.Node) string {
	switch n := node.(type) {
	case *ast.Heading:
		return styleBold + r.renderInline(n) + styleReset
	case *ast.ThematicBreak:
		return styleDim + strings.Repeat("─", 40) + styleReset
	case *ast.Blockquote:
		return prefixLines(r.renderBlocks(n, "\n\n"), styleDim+"│ "+styleReset, styleDim+"│ "+styleReset)
	case *ast.List:
		return r.renderList(n)
	case *ast.FencedCodeBlock, *ast.CodeBlock, *ast.HTMLBlock:
		return prefixLines(strings.TrimRight(r.literalText(n), "\n"), "    "+styleCode, "    ") + styleReset
	case *table.Table:
		return r.renderTable(n)
	}
	return r.renderInline(node)
}

// literalText returns the lines of a code or HTML block as written.
func (r *renderer) literalText(n ast.Node) string {
	code := string(n.Lines().Value(r.source))
	if html, ok := n.(*ast.HTMLBlock); ok && html.HasClosure() { // Lines does not include the closing line
		code += string(html.ClosureLine.Value(r.source))
	}
	return code
}

// renderList returns the text of a list. Each item begins with a bullet or a number, and its other lines are indented by the
// same width.
func (r *renderer) renderList(n *ast.List) string {
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
		indent := strings.Repeat(" ", utf8.RuneCountInString(bullet))
		items = append(items, prefixLines(r.renderBlocks(item, separator), bullet, indent))
	}
	return strings.Join(items, separator)
}

// renderTable returns the text of a table. It pads all cells of a column to the same width and makes the header bold.
func (r *renderer) renderTable(n *table.Table) string {
	var rows [][]string // the header first
	var widths []int    // of the columns
	for row := n.FirstChild(); row != nil; row = row.NextSibling() {
		var cells []string
		for cell := row.FirstChild(); cell != nil; cell = cell.NextSibling() {
			column := len(cells)
			cells = append(cells, r.renderInline(cell))
			if column == len(widths) {
				widths = append(widths, 0)
			}
			widths[column] = max(widths[column], visibleWidth(cells[column]))
		}
		rows = append(rows, cells)
	}
	var lines []string
	for i, cells := range rows {
		for column, cell := range cells {
			cells[column] = cell + strings.Repeat(" ", widths[column]-visibleWidth(cell))
		}
		line := strings.TrimRight(strings.Join(cells, "  "), " ")
		if i == 0 {
			line = styleBold + line + styleReset
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// visibleWidth returns the number of terminal columns that text takes. Most emoji and East Asian wide characters take
// two (Unicode Standard Annex #11). Styles, combining marks and format characters such as emoji joiners take no column.
func visibleWidth(text string) int {
	columns := 0
	inStyle := false // between ESC and the m that ends a style
	for _, r := range text {
		switch {
		case r == '\x1b':
			inStyle = true
		case inStyle:
			inStyle = r != 'm'
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

// renderInline returns the text of a node's inline children. It adds styles for emphasis and code, and shows the URL of a
// link after the link's text.
func (r *renderer) renderInline(n ast.Node) string {
	var b strings.Builder
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		switch c := child.(type) {
		case *ast.Text:
			b.WriteString(unescapeText(c.Segment.Value(r.source)))
			if c.SoftLineBreak() || c.HardLineBreak() {
				b.WriteByte('\n')
			}
		case *ast.String:
			b.Write(c.Value)
		case *ast.CodeSpan:
			b.WriteString(styleCode + r.renderInline(c) + styleReset)
		case *ast.Emphasis:
			style := styleItalic
			if c.Level > 1 {
				style = styleBold
			}
			b.WriteString(style + r.renderInline(c) + styleReset)
		case *table.Strikethrough:
			b.WriteString(styleStrike + r.renderInline(c) + styleReset)
		case *ast.Link:
			b.WriteString(r.renderInline(c) + styleDim + " (" + string(c.Destination) + ")" + styleReset)
		case *ast.Image:
			b.WriteString(r.renderInline(c) + styleDim + " (" + string(c.Destination) + ")" + styleReset)
		case *ast.AutoLink:
			b.Write(c.URL(r.source))
		case *ast.RawHTML:
			b.Write(c.Segments.Value(r.source))
		default:
			b.WriteString(r.renderInline(c))
		}
	}
	return b.String()
}

// unescapeText resolves the character references and backslash escapes in Markdown text. A reference can stand for a control
// character, so unescapeText applies PlainText again.
func unescapeText(source []byte) string {
	source = util.ResolveNumericReferences(source)
	source = util.ResolveEntityNames(source)
	return PlainText(string(util.UnescapePunctuations(source)))
}

// prefixLines puts first before the first line of text and rest before every other line.
func prefixLines(text, first, rest string) string {
	return first + strings.ReplaceAll(text, "\n", "\n"+rest)
}
