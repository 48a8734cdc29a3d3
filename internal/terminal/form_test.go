package terminal

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// answerForm asks a question whose run has a form with one field, v, and returns what the session sent as its content and
// what it showed. The person types the lines.
func answerForm(t *testing.T, field string, lines ...string) (sent, shown string) {
	t.Helper()
	sent, shown = answerInterrupt(t, `{"id":"i","kind":"elicitation","mode":"form","schema":{"type":"object","properties":{"v":`+field+`},"required":["v"]}}`, append([]string{"y"}, lines...)...)
	sent = strings.TrimSuffix(strings.TrimPrefix(sent, `{"action":"accept","content":{"v":`), `},"id":"i"}`)
	return sent, shown
}

// answerInterrupt asks a question whose run waits for an answer to the interrupt, and returns what the session sent and
// what it showed. The person types the lines; without lines there is no terminal.
func answerInterrupt(t *testing.T, interrupt string, lines ...string) (sent, shown string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/input"):
			body, _ := io.ReadAll(r.Body)
			sent = string(body)
		case strings.HasSuffix(r.URL.Path, "/events"):
			fmt.Fprint(w, "id: run_1:3\nevent: final_answer\ndata: {\"type\":\"final_answer\",\"answer\":\"\"}\n\n")
		default:
			fmt.Fprint(w, "id: run_1:1\nevent: start\ndata: {\"type\":\"start\",\"run_id\":\"run_1\"}\n\n")
			fmt.Fprintf(w, "id: run_1:2\nevent: suspended\ndata: {\"type\":\"suspended\",\"interrupts\":[%s]}\n\n", interrupt)
		}
	}))
	defer server.Close()
	var errs strings.Builder
	s := New(Options{URL: server.URL, In: strings.NewReader(strings.Join(lines, "\n") + "\n"), Out: io.Discard, Err: &errs, Interactive: len(lines) > 0})
	defer s.Close()
	if err := s.Ask(t.Context(), "?"); err != nil {
		t.Errorf("%s: Ask failed: %v", interrupt, err)
	}
	return sent, errs.String()
}

func TestFormSendsWhatThePersonTypes(t *testing.T) {
	for _, c := range []struct {
		field string
		lines []string
		sent  string
		shown string
	}{
		{`{"type":"integer","default":9007199254740993}`, []string{""}, `9007199254740993`, "[9007199254740993]"},
		{`{"type":"integer","default":1000000}`, []string{""}, `1000000`, "[1000000]"},
		{`{"type":"integer"}`, []string{"1.5", "18446744073709551615"}, `18446744073709551615`, "not a value"},
		{`{"type":"number"}`, []string{"nan", "inf", ".5"}, `0.5`, "not a value"},
		{`{"type":"number"}`, []string{"0.10"}, `0.10`, "(number)"},
		{`{"type":"string","default":"a b"}`, []string{""}, `"a b"`, "[a b]"},
		{`{"type":"string","description":"Two\nlines"}`, []string{"x"}, `"x"`, "v, Two lines: "},
		{`{"type":"boolean","default":false}`, []string{""}, `false`, "[false]"},
		{`{"type":["string","null"]}`, []string{"x"}, `"x"`, "v: "},
		{`{"type":"integer","enum":[1,2]}`, []string{"3", "2"}, `2`, "(1, 2)"},
		{`{"type":"string","oneOf":[{"const":"r","title":"Red"},{"const":"g","title":"Green"}]}`, []string{"blue", "g"}, `"g"`, "(r = Red, g = Green)"},
		{`{"type":"array","items":{"type":"string","enum":["New York","Rome","Oslo"]}}`, []string{"Rome Oslo"}, `["Rome","Oslo"]`, "(list: New York, Rome, Oslo)"},
		{`{"type":"array","items":{"type":"string","enum":["New York","Rome"]}}`, []string{"New York"}, `["New York"]`, ""},
		{`{"type":"array","items":{"anyOf":[{"const":"New York","title":"NY"},{"const":"Rome"}]}}`, []string{"New York, Rome"}, `["New York","Rome"]`, "(list: New York = NY, Rome)"},
		{`{"type":"array","items":{"enum":["a","b"]},"default":["a","b"]}`, []string{""}, `["a","b"]`, `["a","b"]`},
	} {
		if sent, shown := answerForm(t, c.field, c.lines...); sent != c.sent || !strings.Contains(shown, c.shown) {
			t.Errorf("%s: got %s sent and %q shown, want %s and %q", c.field, sent, shown, c.sent, c.shown)
		}
	}
}

func TestApprovalWithoutATerminalIsRefused(t *testing.T) {
	sent, shown := answerInterrupt(t, `{"id":"i","kind":"approval","tool":"send","message":"Allow it?","args":{}}`)
	if want := "! Allow it? Refused, because there is no terminal; -yes approves\n"; !strings.Contains(shown, want) || !strings.Contains(sent, `"approved":false`) {
		t.Errorf("got %q shown and %s sent, want %q and a refusal", shown, sent, want)
	}
}

// A person must see what they approve: text that turns around, or that has no width, can hide it.
func TestApprovalShowsCharactersThatCannotBeSeen(t *testing.T) {
	const args = "{\"to\":\"eve\u202egnp.\",\"n\":\"a\u200bb\U000e0041\u2028\u0085é😀\"}"
	sent, shown := answerInterrupt(t, `{"id":"i","kind":"approval","tool":"send","message":"Allow it?","args":`+args+`}`, "y")
	if want := `{"to":"eve\u202egnp.","n":"a\u200bb\udb40\udc41\u2028\u0085é😀"}`; !strings.Contains(shown, want) || sent != `{"approved":true,"id":"i"}` {
		t.Errorf("got %q shown and %s sent, want %s and the approval", shown, sent, want)
	}
}
