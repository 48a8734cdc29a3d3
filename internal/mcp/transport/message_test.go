package transport

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

func TestLimitDepthReplacesOnlyWhatIsTooDeep(t *testing.T) {
	nested := func(levels int, inner string) json.RawMessage {
		return json.RawMessage(strings.Repeat(`{"a":[`, levels/2) + inner + strings.Repeat(`]}`, levels/2))
	}
	wide := json.RawMessage(`[` + strings.Repeat(`{"a":1.0},`, 2000) + `9007199254740993]`)
	for name, test := range map[string]struct{ in, want json.RawMessage }{
		"as deep as may be": {nested(maxNesting, `"x"`), nested(maxNesting, `"x"`)},
		"deeper":            {nested(maxNesting, `1.0, {"b":[{}]}, 2`), nested(maxNesting, `1.0,"[nested too deep]",2`)},
		"wide":              {wide, wide},
		"nothing":           {nil, nil},
	} {
		if got := limitDepth(test.in); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %d bytes, want %d", name, len(got), len(test.want))
		}
	}
}

// MakeID of the SDK cuts the fraction off, so that 7.5 would be the id of request 7.
func TestDecodeMessageRefusesAFractionalID(t *testing.T) {
	if m, err := decodeMessage([]byte(`{"jsonrpc":"2.0","id":7.5,"result":{}}`)); err == nil {
		t.Errorf("decodeMessage of a response with the id 7.5 = %+v, want an error", m)
	}
	if m, err := decodeMessage([]byte(`{"jsonrpc":"2.0","id":7.0,"result":{}}`)); err != nil {
		t.Errorf("decodeMessage of a response with the id 7.0 = %+v, %v, want the response to 7", m, err)
	}
}

// The answer to a request of the server has the id of the request exactly (JSON-RPC 2.0 section 5).
func TestAnswerHasTheIDOfItsRequest(t *testing.T) {
	for _, id := range []string{
		`0`, `-1`, `"7"`, `""`, `9007199254740992`, `9007199254740993`, `-9223372036854775807`, `18446744073709551615`, `1e300`,
	} {
		msg, err := decodeMessage([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := encodeMessage(&jsonrpc.Response{ID: msg.(*jsonrpc.Request).ID, Result: json.RawMessage(`{}`)})
		if want := `{"jsonrpc":"2.0","id":` + id + `,"result":{}}`; err != nil || string(answer) != want {
			t.Errorf("got the answer %s, %v, want %s", answer, err, want)
		}
	}
}

// A server cannot have answerd write the rest of such an id into an answer as JSON.
func TestIDThatLooksLikeALargeIntegerIsRefused(t *testing.T) {
	for _, id := range []string{`"answerd/integer:1"`, `"answerd/integer:{}"`, `"answerd/integer:"`} {
		if msg, err := decodeMessage([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}`)); err == nil {
			t.Errorf("decodeMessage with the id %s = %v, no error, want an error", id, msg)
		}
	}
}

func TestDecodeMessageNamesTheRequestOfABadAnswer(t *testing.T) {
	for in, want := range map[string]any{
		`{"jsonrpc":"2.0","id":7,"error":[]}`:                 int64(7),
		`{"jsonrpc":"1.0","id":"a","result":{}}`:              "a",
		`{"id":7,"result":{}}`:                                nil,
		`{"jsonrpc":"2.0","id":{},"result":{}}`:               nil,
		`{"jsonrpc":"2.0","id":7,"method":7}`:                 nil,
		`{"jsonrpc":"2.0","id":7,"result":{}} {}`:             nil,
		`{"jsonrpc":"2.0","id":7,"result":{`:                  nil,
		`[{"jsonrpc":"2.0","id":7,"result":{}}]`:              nil,
		`{"jsonrpc":"2.0","id":7,"result":{"a":1}, "x": nul}`: nil,
	} {
		_, err := decodeMessage([]byte(in))
		var got any
		if response, ok := errors.AsType[*malformedResponse](err); ok {
			got = response.id.Raw()
		}
		if err == nil || got != want {
			t.Errorf("decodeMessage(%s): got the request %v and the error %v, want %v and an error", in, got, err, want)
		}
	}
}

// An answer that is too large names its request only if the id is at its beginning.
func TestOversizeErrorNamesItsRequest(t *testing.T) {
	for head, want := range map[string]any{
		`{"jsonrpc":"2.0","id":7,"result":{"content":[`:           int64(7),
		`{"id":"x","jsonrpc":"2.0","result":"`:                    "x",
		`{"jsonrpc":"2.0","id":7`:                                 int64(7),
		`{"jsonrpc":"2.0","result":{"id":7,"a":"`:                 nil,
		`{"jsonrpc":"2.0","method":"x","id":7,"params":"`:         nil,
		`{"jsonrpc":"2.0","id":7,"method":"x","params":"`:         nil,
		`{"jsonrpc":"2.0","id":{},"result":"`:                     nil,
		`[{"jsonrpc":"2.0","id":7,"result":"`:                     nil,
		``:                                                        nil,
		`{"a":` + strings.Repeat(" ", 2*maxIDOffset) + `1,"id":7`: nil,
	} {
		if got := newOversizeError([]byte(head), MaxMessage).answers.Raw(); got != want {
			t.Errorf("newOversizeError(%.60s).answers = %v, want %v", head, got, want)
		}
	}
}
