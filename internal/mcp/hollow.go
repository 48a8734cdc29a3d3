package mcp

import (
	"bytes"
	"encoding/json"
	"strconv"

	"answerd/internal/jsontext"

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
	if len(data) == 0 || data[0] != '{' || !jsontext.Valid(data) {
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

// idOf is the id that a JSON value stands for, which is valid. Ours are numbers, and to
// read one by way of any costs more than all else in the message: strconv.ParseFloat needs
// so much stack that the call's goroutine gets a larger one there, copied, each time.
func idOf(value json.RawMessage) (jsonrpc.ID, error) {
	if n, err := strconv.ParseInt(string(value), 10, 53); err == nil {
		return jsonrpc.MakeID(float64(n))
	}
	var id any
	if err := json.Unmarshal(value, &id); err != nil {
		return jsonrpc.ID{}, err
	}
	return jsonrpc.MakeID(id)
}
