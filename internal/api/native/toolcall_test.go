package native_test

import (
	"errors"
	"testing"

	"answerd/internal/api/native"
)

func TestArgumentsOfACallStayAsWritten(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:           ``,
		`{"args": {}}`: `{}`,
		`{"args":{"b":[1.50, 12345678901234567890], "a":"\u00e9"},"context":{"k":"v"}}`: `{"b":[1.50, 12345678901234567890], "a":"\u00e9"}`,
	} {
		call, err := native.DecodeToolCall([]byte(body))
		if err != nil || string(call.Args) != want {
			t.Errorf("%s: %s, %v, want %s and no error", body, call.Args, err, want)
		}
	}
}

func TestBodyThatIsNoCallIsRefusedByItsFields(t *testing.T) {
	for body, pointer := range map[string]string{
		``:                                "",
		`[]`:                              "",
		`{} {}`:                           "",
		`{"args":1}`:                      "/args",
		`{"args":null}`:                   "/args",
		`{"Args":{}}`:                     "/Args",
		`{"tool":"add"}`:                  "/tool",
		`{"args":{"a":{"b":1,"b":2}}}`:    "/args/a/b",
		`{"args":{"a":"\ud800"}}`:         "/args/a",
		`{"context":{"a":1}}`:             "/context/a",
		`{"args":{},"context":[]}`:        "/context",
		"{\"args\":{\"a\":\"\xff\"}}":     "",
		`{"args":[],"context":{"a":""},}`: "",
	} {
		_, err := native.DecodeToolCall([]byte(body))
		var bad *native.Invalid
		if !errors.As(err, &bad) || bad.Errors[0].Pointer != pointer {
			t.Errorf("%s: %v, want an Invalid, Errors[0].Pointer %s", body, err, pointer)
		}
	}
}
