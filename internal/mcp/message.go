package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"answerd/internal/mcp/wire"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// decodeMessage reads a JSON-RPC message, whose parts share data. With an error it returns
// an empty response where data names the request that it would have answered, and else nil.
// jsonrpc.DecodeMessage copies large results several times, and refuses for its depth what
// boundDepth lets pass.
func decodeMessage(data []byte) (jsonrpc.Message, error) {
	var version, rawID, method, params, result, rawError json.RawMessage
	err := wire.Members(data, func(name string, value json.RawMessage) {
		switch name {
		case "jsonrpc":
			version = value
		case "id":
			rawID = value
		case "method":
			method = value
		case "params":
			params = value
		case "result":
			result = value
		case "error":
			rawError = value
		}
	})
	if err != nil {
		return nil, err
	}
	id, err := idOf(rawID)
	if err == nil && string(version) != `"2.0"` {
		err = errors.New("it is not JSON-RPC 2.0")
	}
	if method != nil {
		name, ok := wire.Text(method)
		if err == nil && !ok {
			err = errors.New("its method is not a string")
		}
		if err != nil {
			return nil, err
		}
		return &jsonrpc.Request{ID: id, Method: name, Params: params}, nil
	}
	if !id.IsValid() || version == nil {
		return nil, errors.Join(errors.New("it is neither a request nor a response"), err)
	}
	if rawError == nil || string(rawError) == "null" {
		return &jsonrpc.Response{ID: id, Result: boundDepth(result)}, err
	}
	answer := &serverError{}
	if err == nil {
		err = json.Unmarshal(rawError, &answer.rpc)
	}
	return &jsonrpc.Response{ID: id, Error: answer}, err
}

// idOf returns the request id that a JSON value stands for; an invalid one for none.
func idOf(value json.RawMessage) (jsonrpc.ID, error) {
	if text, ok := wire.Text(value); ok {
		if value == nil || value[0] == 'n' {
			return jsonrpc.ID{}, nil
		}
		return jsonrpc.MakeID(text)
	}
	n, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return jsonrpc.ID{}, fmt.Errorf("its id is not a string or a number: %w", err)
	}
	return jsonrpc.MakeID(n)
}

// serverError is an error that the server answered with. The SDK compares errors by their
// JSON-RPC code alone, and would take a server's -32003 for the end of the session; so only
// errors.As finds the code.
type serverError struct{ rpc jsonrpc.Error }

func (e *serverError) Error() string { return e.rpc.Message }

// As implements errors.As.
func (e *serverError) As(target any) bool {
	rpc, ok := target.(**jsonrpc.Error)
	if ok {
		*rpc = &e.rpc
	}
	return ok
}

// maxNesting is how many levels deep the SDK decodes. It refuses a result with more of
// them: one deep schema would hide all tools of the list (F21).
const maxNesting = 1000

// boundDepth returns a valid result with a string in the place of each value that is nested
// deeper than the SDK decodes.
func boundDepth(result json.RawMessage) json.RawMessage {
	if bytes.Count(result, []byte("{"))+bytes.Count(result, []byte("[")) <= maxNesting || wire.Depth(result) <= maxNesting {
		return result
	}
	var out bytes.Buffer
	dec, enc := jsontext.NewDecoder(bytes.NewBuffer(result), wire.Options...), jsontext.NewEncoder(&out, wire.Options...)
	for {
		kind := dec.PeekKind()
		if deep := kind == '{' || kind == '['; deep && dec.StackDepth() == maxNesting {
			_ = dec.SkipValue()
			_ = enc.WriteToken(jsontext.String("[nested too deep]"))
			continue
		}
		token, err := dec.ReadToken()
		if err != nil { // the end: the result is valid
			return bytes.TrimSpace(out.Bytes())
		}
		_ = enc.WriteToken(token)
	}
}
