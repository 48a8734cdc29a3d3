package event

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// filledValue returns a value of type t with something in every field.
func filledValue(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		v.SetBytes([]byte(`{"a":[1,null,"<\u2028>"]}`))
	case t.Kind() == reflect.String:
		v.SetString("ü\n\"<\u2028\\")
	case t.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(1 << 60)
	case v.CanFloat():
		v.SetFloat(0.1)
	case t.Kind() == reflect.Slice:
		v.Set(reflect.Append(v, filledValue(t.Elem())))
	case t.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(filledValue(t.Key()), filledValue(t.Elem()))
	case t.Kind() == reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(filledValue(t.Elem()))
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			v.Field(i).Set(filledValue(t.Field(i).Type))
		}
	}
	return v
}

// A durable log returns a body of any type as it was appended.
func TestDecodeReturnsWhatEncodeWasGiven(t *testing.T) {
	for _, d := range decoders {
		empty, err := d.decode([]byte(`{}`))
		if err != nil || empty.Type() != d.typ {
			t.Fatalf("decoder of %q returns a %T, %v, want Type %q, no error", d.typ, empty, err, d.typ)
		}
		for _, b := range []Body{empty, filledValue(reflect.TypeOf(empty)).Interface().(Body)} {
			e, err := Encode("run_a", 7, 1<<40, b)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Decode(e.JSON)
			if err != nil || got.RunID != "run_a" || got.Seq != 7 || got.Time != 1<<40 {
				t.Fatalf("Decode(%s) = %+v, %v, want run_a, number 7, time %d", e.JSON, got, err, int64(1)<<40)
			}
			again, err := Encode("run_a", 7, 1<<40, got.Body)
			if err != nil || !bytes.Equal(again.JSON, e.JSON) {
				t.Errorf("Encode(Decode(%s)) = %s, %v, want the same", e.JSON, again.JSON, err)
			}
		}
	}
	for _, bad := range []string{"", "null", "[]", `{"type":"no thing"}`, `{"type":"a\nb"}`, `{"type":"` + strings.Repeat("a", 65) + `"}`, `{"type":"start","question":1}`, `{"type":1}`} {
		if e, err := Decode([]byte(bad)); err == nil {
			t.Errorf("Decode(%q) = %+v, want an error", bad, e)
		}
	}
}

// Versions of answerd share a log during an upgrade, and after a rollback.
func TestDecodeKeepsWhatAnotherVersionWrote(t *testing.T) {
	for line, want := range map[string]Body{
		`{"type":"run_moved","run_id":"run_a","seq":7,"ts":9,"to":{"zone":"b"}}`:                      Unknown{"run_moved"},
		`{"type":"step_reset","run_id":"run_a","seq":7,"ts":9,"step":2,"reason":"r","cause":["new"]}`: StepReset{Step: 2, Reason: "r"},
	} {
		e, err := Decode([]byte(line))
		if err != nil || e.RunID != "run_a" || e.Seq != 7 || e.Time != 9 || e.Body != want || string(e.AppendJSON(nil)) != line || e.Terminal() {
			t.Errorf("Decode(%s) = %+v, %v, want %+v and the same JSON", line, e, err, want)
		}
	}
	if e, err := Encode("run_a", 1, 2, Unknown{"run_moved"}); err == nil {
		t.Errorf("Encode of an unknown event = %s, want an error", e.JSON)
	}
}

func TestDeltasJoinsThoseOfOnePart(t *testing.T) {
	call := Call{CallID: "c", Tool: "t"}
	for _, c := range []struct{ a, b, want Body }{
		{nil, TextDelta{"p", "a"}, TextDelta{"p", "a"}},
		{nil, TextEnd{"p"}, nil},
		{TextDelta{"p", "a"}, TextDelta{"p", "b"}, TextDelta{"p", "ab"}},
		{TextDelta{"p", "a"}, TextDelta{"p", ""}, TextDelta{"p", "a"}},
		{TextDelta{"p", "a"}, TextEnd{"p"}, nil},
		{TextDelta{"p", "a"}, TextDelta{"q", "b"}, nil},
		{TextDelta{"p", "a"}, ReasoningDelta{"p", "b"}, nil},
		{ReasoningDelta{"p", "a"}, ReasoningDelta{"p", "b"}, ReasoningDelta{"p", "ab"}},
		{ToolCallArgs{call, "a"}, ToolCallArgs{call, "b"}, ToolCallArgs{call, "ab"}},
		{ToolCallArgs{call, "a"}, ToolCallArgs{Call{CallID: "d"}, "b"}, nil},
		{TextDelta{"p", strings.Repeat("a", 60)}, TextDelta{"p", "more than fits"}, nil},
		{nil, TextDelta{"p", strings.Repeat("a", 100)}, nil},
	} {
		var d Deltas
		if c.a != nil && !d.Add(c.a, 100) {
			t.Errorf("Add(%v) = false, want true", c.a)
		}
		want := c.want
		if want == nil {
			want = c.a
		}
		if ok := d.Add(c.b, 100); ok != (c.want != nil) || d.Join() != want {
			t.Errorf("Add(%v) after %v = %v, Join = %v, want %v, %v", c.b, c.a, ok, d.Join(), c.want != nil, want)
		}
	}
}
