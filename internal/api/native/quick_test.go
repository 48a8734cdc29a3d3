package native

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzParse(f *testing.F) {
	for _, body := range []string{
		`{"question":"What?","history":[{"role":"user","content":"a"}],"budget":{"seconds":1.5e3},"n":-0,"b":[true,false,null, {}, []]}`,
		" {\t\"a\" :\n[1 ,2]\r} ", `"a \"b\" \\ \/ \b\f\n\r\t c"`, `"é \u00e9 😀"`, `"\ud800"`, `{"a":1,"a":2}`,
		`[1,]`, `[01]`, `{"a"}`, `{,}`, `"a`, `"\`, `"\x"`, "\"a\nb\"", "\"\x00\"", `tru`, `nullx`, `1 2`, `-`, ``, ` `, `{"a":1}}`,
		strings.Repeat("[", 15) + "1" + strings.Repeat("]", 15), strings.Repeat("[", 17) + strings.Repeat("]", 17),
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if !utf8.Valid(body) {
			return
		}
		quick, ok := quickParse(body)
		if slow, err := slowParse(body); ok && (err != nil || !reflect.DeepEqual(quick, slow)) {
			t.Errorf("%q is %v, and to the decoder %v %v", body, quick, slow, err)
		}
	})
}

func TestAnOrdinaryQuestionIsReadQuickly(t *testing.T) {
	for _, body := range []string{
		`{"question":"What \"time\" is it?\n","history":[{"role":"user","content":"a"},{"role":"assistant","content":"é"}],"background":false,"max_turns":3}`,
		"{}",
	} {
		if _, ok := quickParse([]byte(body)); !ok {
			t.Errorf("%s is odd", body)
		}
	}
}
