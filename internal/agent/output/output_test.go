package output

import (
	"errors"
	"strings"
	"testing"
)

func TestSchemaChecksAnswers(t *testing.T) {
	s, err := Compile([]byte(`{"type":"object","properties":{"n":{"type":"integer"},"a/b":{"enum":["x"]}},"required":["n"],"additionalProperties":false}`))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"{\"n\": 1,\n \"a/b\": \"x\"}": "",
		`{"n":12345678901234567890}`:   "",
		`{"n":"1","a/b":"y"}`:          "/a~1b /n",
		`{"n":1,"m":2}`:                "/m",
		`{}`:                           "/n",
		`{"n":1`:                       "-",
		`{"n":1} and more`:             "-",
		`{"n":1,"n":2}`:                "/n",
		"  \n":                         "-",
		`[1]`:                          "-",
	} {
		value, problems := s.Check(text)
		var at []string
		for _, p := range problems {
			if p.Pointer == "" {
				p.Pointer = "-"
			}
			at = append(at, p.Pointer)
		}
		if strings.Contains(strings.Join(at, " "), "/n /a~1b") {
			at = []string{"/a~1b", "/n"}
		}
		if got := strings.Join(at, " "); got != want || (value == nil) != (want != "") {
			t.Errorf("%s: got value %s with problems at %q, want problems at %q", text, value, got, want)
		}
		if strings.Contains(string(value), "\n") {
			t.Errorf("got the value %q, want it on one line", value)
		}
	}
}

func TestCompileRefusesUnusableSchemas(t *testing.T) {
	at := map[string]string{"bad type": "/properties/a~1b/items/0/type"}
	for name, raw := range map[string]string{
		"not JSON":   `{"type":`,
		"a text":     `"object"`,
		"bad type":   `{"properties":{"a/b":{"items":[{"type":["string","strng"]}]}}}`,
		"remote ref": `{"$ref":"https://example.com/schema"}`,
		"endless":    `{"$ref":"#"}`,
		"large":      `{"title":"` + strings.Repeat("x", MaxSchema) + `"}`,
	} {
		_, err := Compile([]byte(raw))
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.HasPrefix(invalid.Detail, "it ") || invalid.Pointer != at[name] {
			t.Errorf("%s: got %v, want an *InvalidError at %q that begins with it", name, err, at[name])
		}
	}
	if _, err := Compile([]byte(`{"properties":{"type":{"enum":["strng"]}},"$ref":"#/$defs/a","$defs":{"a":{"type":["object","null"]}}}`)); err != nil {
		t.Errorf("got %v, want no error", err)
	}
}

func TestRepairPromptNamesEveryViolation(t *testing.T) {
	got := RepairPrompt([]Problem{{Pointer: "/a", Detail: "expected integer"}, {Detail: "not JSON"}})
	for _, want := range []string{"- /a: expected integer\n", "- (the whole answer): not JSON\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
}

// fenceCases maps texts to the same texts without their fence.
var fenceCases = map[string]string{
	`{"a":1}`:                              `{"a":1}`,
	"```json\n{\"a\":1}\n```":              `{"a":1}`,
	"\n ```\n{\"a\":\"`\"}\n```  \n":       "{\"a\":\"`\"}",
	"```JSON \r\n[1,\r\n2]\r\n```":         "[1,\r\n2]",
	"  {\"a\":1}\n":                        "  {\"a\":1}\n",
	"Here:\n```json\n{}\n```":              "Here:\n```json\n{}\n```",
	"```json\n{}\n```\nThat is all.":       "{}\n```\nThat is all.",
	"```json\n{\"a\":\"```\\n\"}\n```":     "{\"a\":\"```\\n\"}",
	"```":                                  "```",
	"``":                                   "``",
	"":                                     "",
	"```json\n{}":                          "{}",
	"```json\n{} ``":                       "{} ``",
	"```{\"a\":1}\n```":                    "```{\"a\":1}\n```",
	"```json\n" + strings.Repeat(" ", 400): strings.Repeat(" ", 400),
	strings.Repeat("\n", 400) + "```\n{}":  strings.Repeat("\n", 400) + "```\n{}",
}

func TestFenceIsRemovedInPiecesOfAnySize(t *testing.T) {
	for text, want := range fenceCases {
		for size := 1; size <= max(len(text), 1); size++ {
			if got := withoutFence(text, size); got != want {
				t.Errorf("%q in pieces of %d: got %q, want %q", text, size, got, want)
			}
		}
	}
}

func withoutFence(text string, size int) string {
	var f Fence
	var out strings.Builder
	for len(text) > 0 {
		n := min(size, len(text))
		out.WriteString(f.Add(text[:n]))
		text = text[n:]
	}
	return out.String() + f.End()
}

// FuzzFence: the pieces do not matter, and text without a fence stays as it is.
func FuzzFence(f *testing.F) {
	for text := range fenceCases {
		f.Add(text, 3)
	}
	f.Fuzz(func(t *testing.T, text string, size int) {
		if size < 1 || len(text) > maxPending {
			return
		}
		whole, pieces := withoutFence(text, len(text)+1), withoutFence(text, size)
		if whole != pieces {
			t.Errorf("%q: got %q in pieces of %d, want %q as in one piece", text, pieces, size, whole)
		}
		if !strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), fence) && whole != text {
			t.Errorf("got %q, want %q unchanged", whole, text)
		}
	})
}
