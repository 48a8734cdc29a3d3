package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// hollow are the results that the SDK is given in the place of those that are read from
// the exchange. It would decode them once more, refuse content that it doesn't know, and
// keep lists and resources for the server's ttlMs, with no way to ask again but a new
// session and no regard for whom they were for.
var hollow = map[string]json.RawMessage{
	methodCall:                 json.RawMessage(`{"content":[]}`),
	methodRead:                 json.RawMessage(`{"contents":[]}`),
	"tools/list":               json.RawMessage(`{"tools":[]}`),
	"resources/list":           json.RawMessage(`{"resources":[]}`),
	"resources/templates/list": json.RawMessage(`{"resourceTemplates":[]}`),
	"prompts/list":             json.RawMessage(`{"prompts":[]}`),
}

// hollowed is the answer to a request of that method as the SDK is to have it, and
// whether that is another one. What asks something of us is the SDK's to answer.
func hollowed(method string, m *jsonrpc.Response) (json.RawMessage, bool) {
	empty := hollow[method]
	return empty, empty != nil && m.Error == nil && !bytes.Contains(m.Result, []byte(`"input_required"`))
}

// decode reads a message that may be the answer to x. The SDK's way to do so takes 50
// KiB, and refuses depths that are no matter to those who read bytes.
func (x *exchange) decode(data []byte) (jsonrpc.Message, error) {
	if hollow[x.asking()] != nil {
		if m := plainAnswer(data); m != nil {
			return m, nil
		}
	}
	return jsonrpc.DecodeMessage(data)
}

// plainAnswer is a JSON-RPC message if it is an answer with a result; else nil. The result
// shares data: to decode a large one into a map of raw values reads it thrice, and copies it.
func plainAnswer(data []byte) *jsonrpc.Response {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' || !json.Valid(data) {
		return nil
	}
	var version, rawID, result json.RawMessage
	for name, value := range members(data) {
		switch name {
		case "jsonrpc":
			version = value
		case "id":
			rawID = value
		case "result":
			result = value
		case "method", "error":
			return nil // the SDK knows what that is
		}
	}
	if string(version) != `"2.0"` || result == nil {
		return nil
	}
	id, err := idOf(rawID)
	if err != nil || !id.IsValid() {
		return nil
	}
	return &jsonrpc.Response{ID: id, Result: result}
}

// errTaken is an answer that the SDK does not get to see, over HTTP: to it the request
// looks refused, which ends that request and nothing else (see guard), and outcome finds the
// result in the exchange. To read even a hollow one would cost the SDK three decoders of 32
// KiB each, and a goroutine to read the stream with: of the 322 kB of garbage that an answer
// with one call made, 120.
var errTaken = errors.New("the answer was taken from the wire")

// forSDK is the answer m, received as data, as the SDK is to have it. taken says that all
// of it is noted, and the SDK can do without.
func (x *exchange) forSDK(m *jsonrpc.Response, data []byte) (_ []byte, taken bool) {
	empty, ok := hollowed(x.asking(), m)
	if !ok {
		return data, false
	}
	id, _ := json.Marshal(m.ID.Raw()) // a number or a string
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, empty), true
}
