package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"answerd/internal/compute"
	"answerd/internal/mcp/wire"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// byteOrderMark begins the output of some runtimes, such as .NET with Encoding.UTF8 and PHP files that were
// saved with one. A parser may ignore it (RFC 8259 section 8.1).
var byteOrderMark = []byte("\ufeff")

// decodeMessage decodes a JSON-RPC message, whose parts share data. With an error it returns an empty
// response if data names the request that it would have answered, else nil. The response has no id if it is
// the error for a request whose id the server could not read (JSON-RPC section 5). jsonrpc.DecodeMessage
// copies large results several times, and refuses deep results that limitDepth makes acceptable.
func decodeMessage(data []byte) (jsonrpc.Message, error) {
	defer compute.Begin(len(data))()
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
	id, err := decodeID(rawID)
	if err == nil && string(version) != `"2.0"` {
		err = errors.New("it is not JSON-RPC 2.0")
	}
	if method != nil && string(method) != "null" { // some servers write null for every member that they do not use
		name, ok := wire.Text(method)
		if err == nil && !ok {
			err = errors.New("its method is not a string")
		}
		if err != nil {
			return nil, err
		}
		return &jsonrpc.Request{ID: id, Method: name, Params: params}, nil
	}

	// An error without a result has no id if the server could not read the request's.
	isErrorAlone := err == nil && len(rawError) > 0 && rawError[0] == '{' && result == nil
	id = ownID(id)
	isResponse := id.IsValid() || isErrorAlone
	if !isResponse || version == nil {
		return nil, errors.Join(errors.New("it is neither a request nor a response"), err)
	}
	if rawError == nil || string(rawError) == "null" {
		return &jsonrpc.Response{ID: id, Result: limitDepth(result)}, err
	}
	answer := &serverError{}
	if err == nil {
		err = json.Unmarshal(rawError, &answer.rpc)
	}
	return &jsonrpc.Response{ID: id, Error: answer}, err
}

// progressMessage and logMessage stand for notifications of which only the method was read.
var (
	progressMessage = &jsonrpc.Request{Method: notificationProgress}
	logMessage      = &jsonrpc.Request{Method: notificationMessage}
)

// decodeStreamed decodes a message of a stream, which may have very many. Of progress and log
// messages it decodes only the method, provided that comes first, as all SDKs write it. The call
// decides from the text whether to deliver such a message, and decodes the rest only then.
func decodeStreamed(data []byte) (jsonrpc.Message, error) {
	switch streamedMethod(data) {
	case notificationProgress:
		return progressMessage, nil
	case notificationMessage:
		return logMessage, nil
	}
	return decodeMessage(data)
}

// streamedMethod returns the method of a message if at most its version comes before it; else "".
func streamedMethod(data []byte) string {
	dec := wire.NewDecoder(data)
	if begin, err := dec.ReadToken(); err != nil || begin.Kind() != '{' {
		return ""
	}
	for {
		name, err := dec.ReadToken()
		if err != nil || name.Kind() != '"' {
			return ""
		}
		member := name.String()
		if member != "jsonrpc" && member != "method" {
			return ""
		}
		value, err := dec.ReadToken()
		switch {
		case err != nil || value.Kind() != '"':
			return ""
		case member == "method":
			return value.String()
		}
	}
}

// decodeID returns the request id in a JSON value; an invalid id where there is none.
func decodeID(value json.RawMessage) (jsonrpc.ID, error) {
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
	if n != math.Trunc(n) { // MakeID would cut the fraction off: the id of another request
		return jsonrpc.ID{}, errors.New("its id is not an integer")
	}
	return jsonrpc.MakeID(n)
}

// ownID returns the id of an answer as that of our request, which is always a number. Some gateways send it
// back as a string, which the SDKs for TypeScript and Python read as well
// (https://github.com/modelcontextprotocol/python-sdk/pull/1720).
func ownID(id jsonrpc.ID) jsonrpc.ID {
	text, _ := id.Raw().(string)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != text {
		return id
	}
	number, err := jsonrpc.MakeID(float64(n))
	if err != nil {
		return id
	}
	return number
}

// serverError is an error that the server answered with. The SDK compares errors by their JSON-RPC
// code alone, and would treat a server's -32003 as the end of the session; so only errors.As finds
// the code.
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

// maxNesting is how many levels deep the SDK decodes. It refuses a result with more levels, so one
// deep schema would hide all tools of a list.
const maxNesting = 1000

// limitDepth returns a valid result in which a string replaces each value that is nested deeper than
// the SDK decodes.
func limitDepth(result json.RawMessage) json.RawMessage {
	if bytes.Count(result, []byte("{"))+bytes.Count(result, []byte("[")) <= maxNesting || wire.Depth(result) <= maxNesting {
		return result
	}
	var out bytes.Buffer
	dec := jsontext.NewDecoder(bytes.NewBuffer(result), wire.Options...)
	enc := jsontext.NewEncoder(&out, wire.Options...)
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

// standardName returns m with the name that MCP has for its method.
func standardName(m *jsonrpc.Request) *jsonrpc.Request {
	name, prefixed := strings.CutPrefix(m.Method, MethodPrefix)
	if !prefixed {
		return m
	}
	out := *m
	out.Method = name
	return &out
}

// oversizeError ends a connection at a message that is too large. It knows which request
// the message would have answered, if its beginning says so: that one call learns that its answer
// is too large, not that its outcome is unknown.
type oversizeError struct {
	*Failure
	answers jsonrpc.ID // invalid where unknown
}

func (e *oversizeError) Unwrap() error { return e.Failure }

// maxIDOffset is how far into a message its id is looked for.
const maxIDOffset = 1 << 10

// newOversizeError returns the error for a message of more than limit bytes that begins with head.
func newOversizeError(head []byte, limit int) *oversizeError {
	oversize := &oversizeError{Failure: AnswerTooLarge(limit)}
	dec := json.NewDecoder(bytes.NewReader(head[:min(len(head), maxIDOffset)]))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return oversize
	}
	var id any
	for dec.More() {
		name, err := dec.Token()
		if err != nil || name == "method" {
			return oversize // the server's own request
		}
		var value any
		if dec.Decode(&value) != nil {
			break // the head ends here
		}
		if name == "id" {
			id = value
		}
	}
	answers, _ := jsonrpc.MakeID(id)
	oversize.answers = ownID(answers)
	return oversize
}
