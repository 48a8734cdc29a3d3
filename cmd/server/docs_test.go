package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"answerd/internal/event"
)

var update = flag.Bool("update", false, "renew golden files and the documents made from the code")

// setting is one field of config with its comment, which is the manual.
type setting struct {
	name, def, comment string
	section            string // title of the section that begins with this setting, otherwise ""
	secret             bool
}

// sectionComment matches the comment above the first setting of a section.
var sectionComment = regexp.MustCompile(`^(.+):\n$`)

// readSettings reads the settings from the source of config, because comments are not in the binary.
func readSettings(t *testing.T) []setting {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}

	sections := map[int]string{} // by the line of the comment
	for _, group := range file.Comments {
		if m := sectionComment.FindStringSubmatch(group.Text()); m != nil {
			sections[fset.Position(group.End()).Line] = m[1]
		}
	}

	var out []setting
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != "config" {
			return true
		}
		for _, f := range spec.Type.(*ast.StructType).Fields.List {
			if f.Tag == nil {
				continue
			}
			tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
			var typ bytes.Buffer
			fmt.Fprint(&typ, f.Type)
			out = append(out, setting{
				name: tag.Get("env"), def: tag.Get("envDefault"),
				comment: strings.Join(strings.Fields(f.Doc.Text()), " "),
				section: sections[fset.Position(f.Doc.Pos()).Line-2],
				secret:  strings.Contains(typ.String(), "Secret"),
			})
		}
		return false
	})
	return out
}

func TestSettingsAreDocumented(t *testing.T) {
	for _, s := range readSettings(t) {
		if s.comment == "" {
			t.Errorf("%s has no comment, want one", s.name)
		}
	}
}

func TestConfigurationPageListsEverySetting(t *testing.T) {
	var b strings.Builder
	for _, s := range readSettings(t) {
		if s.section != "" {
			fmt.Fprintf(&b, "\n## %s\n\n| name | default | meaning |\n|---|---|---|\n", s.section)
		}
		def := "–"
		if s.def != "" {
			def = "`" + s.def + "`"
		}
		name := "`" + s.name + "`"
		if s.secret {
			name += ", `" + s.name + "_FILE`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, def, strings.ReplaceAll(s.comment, "|", `\|`))
	}
	requireSection(t, "../../docs/configuration.md", "settings", b.String())
}

func TestEnvExampleListsEverySetting(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Every setting of answerd with its default. answerd reads the environment and no file: copy the lines that you\n" +
		"# change to a file such as .env, and load it before the start (set -a; . ./.env; set +a), or with docker run --env-file.\n")
	for _, s := range readSettings(t) {
		if s.section != "" {
			fmt.Fprintf(&b, "\n## %s\n\n", s.section)
		}
		fmt.Fprintf(&b, "# %s\n", s.comment)
		if s.secret {
			fmt.Fprintf(&b, "# Or %s_FILE, the path of a file that holds it.\n", s.name)
		}
		fmt.Fprintf(&b, "#%s=%s\n", s.name, s.def)
	}
	requireGolden(t, "../../.env.example", b.String())
}

func TestEventsPageListsEveryEvent(t *testing.T) {
	page, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range event.Types() {
		row := regexp.MustCompile("(?m)^\\|[^|]*`" + string(typ) + "`.*").Find(page)
		if row == nil {
			t.Errorf("the event table lacks %s, want a row for it", typ)
			continue
		}
		e, err := event.Decode([]byte(`{"type":"` + string(typ) + `"}`))
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range reflect.VisibleFields(reflect.TypeOf(e.Body)) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if len(field.Index) == 1 && name != "" && !bytes.Contains(row, []byte("`"+name)) {
				t.Errorf("the row of %s is %s, want its field %s in it", typ, row, name)
			}
		}
	}
}

func TestTerminalPageListsEveryCommand(t *testing.T) {
	page, err := os.ReadFile("../../docs/terminal.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands() {
		if !regexp.MustCompile("(?m)^\\|.*`answerd " + c.name + "`").Match(page) {
			t.Errorf("the table of commands lacks answerd %s, want a row for it", c.name)
		}
	}
}

// requireSection compares the part of a document between two comments with what it should be.
func requireSection(t *testing.T, path, name, want string) {
	t.Helper()
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	head, rest, ok := strings.Cut(string(doc), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no section %s, want ok2 true", path, name)
	}
	requireGolden(t, path, head+begin+want+end+tail)
}

// requireGolden compares a file with what it should be, or renews it with -update.
func requireGolden(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the code says; renew it with: go test ./cmd/server -update\n%s", path, firstDifference(string(got), want))
	}
}

// firstDifference returns the first line that differs.
func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d is   %s\nshould be %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, should be %d", len(g), len(w))
}
