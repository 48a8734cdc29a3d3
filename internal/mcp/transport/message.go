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

// byteOrderMark is at the beginning of what some runtimes write, such as .NET with Encoding.UTF8 and PHP files saved
// with one. A parser may ignore it (RFC 8259 section 8.1).
var byteOrderMark = []byte("\ufeff")

// batch has those messages of a batch (JSON-RPC section 6) that were not returned yet. Servers of 2025-03-26 may send
// batches (basic/transports, "Sending Messages to the Server").
type batch []json.RawMessage

// next returns the next message of b. If b is empty, it calls read, which returns a message or a batch. If a batch does
// not decode, next returns it whole.
func (b *batch) next(read func() ([]byte, error)) ([]byte, error) {
	for len(*b) == 0 {
		data, err := read()
		if err != nil {
			return nil, err
		}
		isBatch := len(data) > 0 && data[0] == '[' && json.Unmarshal(data, b) == nil
		if !isBatch {
			return data, nil
		}
	}
	data := (*b)[0]
	*b = (*b)[1:]
	return data, nil
}

// messageParts holds the members of a JSON-RPC message as received; an absent one is nil.
type messageParts struct{ version, id, method, params, result, rpcError json.RawMessage }

// malformedResponse is the error of a response that does not decode, but has an id and a version. The request with
// this id can then fail.
type malformedResponse struct {
	error // why the response does not decode
	id    jsonrpc.ID
}

func (e *malformedResponse) Unwrap() error { return e.error }

// decodeMessage decodes a JSON-RPC message. The result shares memory with data. For a response, the error may be a
// *malformedResponse. decodeMessage replaces jsonrpc.DecodeMessage, which copies large results several times, and
// refuses deeply nested results that limitDepth makes acceptable.
func decodeMessage(data []byte) (jsonrpc.Message, error) {
	defer compute.Begin(len(data))()
	var parts messageParts
	err := wire.Members(data, func(name string, value json.RawMessage) {
		switch name {
		case "jsonrpc":
			parts.version = value
		case "id":
			parts.id = value
		case "method":
			parts.method = value
		case "params":
			parts.params = value
		case "result":
			parts.result = value
		case "error":
			parts.rpcError = value
		}
	})
	if err != nil {
		return nil, err
	}
	if parts.method == nil || isNull(parts.method) {
		return parts.decodeResponse()
	}
	return parts.decodeRequest()
}

// decodeID decodes the message's id and checks its version. After an error in the version, the id is still valid.
func (p *messageParts) decodeID() (jsonrpc.ID, error) {
	id, err := decodeID(p.id)
	if err == nil && string(p.version) != `"2.0"` {
		err = errors.New("it is not JSON-RPC 2.0")
	}
	return id, err
}

// decodeRequest decodes a message that has a method: a request, or a notification, which has no id.
func (p *messageParts) decodeRequest() (jsonrpc.Message, error) {
	id, err := p.decodeID()
	if err != nil {
		return nil, err
	}
	method, isText := wire.Text(p.method)
	if !isText {
		return nil, errors.New("its method is not a string")
	}
	params := p.params
	if params == nil || isNull(params) {
		params = json.RawMessage("{}") // the SDK's handlers panic without params
	}
	return &jsonrpc.Request{ID: id, Method: method, Params: params}, nil
}

// decodeResponse decodes a message without a method, which should be a response. An error response may lack an id,
// because the server could not read the request's id (JSON-RPC section 5). If the message has a version, and an id or
// an error object, the error is a *malformedResponse.
func (p *messageParts) decodeResponse() (jsonrpc.Message, error) {
	id, err := p.decodeID()
	id = ownID(id)
	isErrorWithoutID := err == nil && bytes.HasPrefix(p.rpcError, []byte("{")) && p.result == nil
	isResponse := id.IsValid() || isErrorWithoutID
	if !isResponse || p.version == nil {
		return nil, errors.Join(errors.New("it is neither a request nor a response"), err)
	}
	if err != nil {
		return nil, &malformedResponse{err, id}
	}
	if p.rpcError == nil || isNull(p.rpcError) {
		return &jsonrpc.Response{ID: id, Result: limitDepth(p.result)}, nil
	}
	answeredError := &serverError{}
	if err := json.Unmarshal(p.rpcError, &answeredError.rpc); err != nil {
		return nil, &malformedResponse{err, id}
	}
	return &jsonrpc.Response{ID: id, Error: answeredError}, nil
}

// isNull reports whether value is null. Some servers write null for each member that they do not use.
func isNull(value json.RawMessage) bool { return string(value) == "null" }

// progressMessage and logMessage are what decodeStreamed returns for all progress and log messages.
var (
	progressMessage = &jsonrpc.Request{Method: notificationProgress}
	logMessage      = &jsonrpc.Request{Method: notificationMessage}
)

// decodeStreamed does what decodeMessage does, except for progress and log messages, of which a stream may have many.
// For these it returns progressMessage or logMessage, without id and params, and leaves it to the receiver to decode
// data if it delivers the message. A message whose method comes after its params is decoded whole; all SDKs write the
// method first.
func decodeStreamed(data []byte) (jsonrpc.Message, error) {
	switch streamedMethod(data) {
	case notificationProgress:
		return progressMessage, nil
	case notificationMessage:
		return logMessage, nil
	}
	return decodeMessage(data)
}

// streamedMethod returns the message's method without reading what follows it. It returns "" if any member other than
// jsonrpc precedes the method.
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

// largeID is the prefix of the string ids that decodeID gives the SDK in place of integers that float64 cannot
// represent exactly. encodeMessage converts them back. The SDK itself makes integer ids from float64 values only.
const largeID = "answerd/integer:"

// encodeMessage encodes one of our messages. An answer gets the id that the server's request had.
func encodeMessage(msg jsonrpc.Message) ([]byte, error) {
	data, err := jsonrpc.EncodeMessage(msg)
	answer, isAnswer := msg.(*jsonrpc.Response)
	if err != nil || !isAnswer {
		return data, err
	}
	id, _ := answer.ID.Raw().(string)
	if number, isLarge := strings.CutPrefix(id, largeID); isLarge {
		data = bytes.Replace(data, wire.Quote(id), []byte(number), 1) // the id comes before the result
	}
	return data, nil
}

// decodeID decodes a request id. If value is empty or null, it returns an invalid id and no error.
func decodeID(value json.RawMessage) (jsonrpc.ID, error) {
	if len(value) == 0 || isNull(value) {
		return jsonrpc.ID{}, nil
	}
	if text, isText := wire.Text(value); isText {
		if strings.HasPrefix(text, largeID) { // encodeMessage would take it for an integer
			return jsonrpc.ID{}, fmt.Errorf("its id begins with %s", largeID)
		}
		return jsonrpc.MakeID(text)
	}
	n, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return jsonrpc.ID{}, fmt.Errorf("its id is not a string or a number: %w", err)
	}
	if n != math.Trunc(n) { // MakeID would truncate it, and it could then equal another request's id
		return jsonrpc.ID{}, errors.New("its id is not an integer")
	}
	if math.Abs(n) >= 1<<53 {
		return jsonrpc.MakeID(largeID + string(value))
	}
	return jsonrpc.MakeID(n)
}

// ownID converts an id that a server has sent to the id of our request, which is always a number, because some
// gateways return the number as a string. The SDKs for TypeScript and Python accept that too
// (https://github.com/modelcontextprotocol/python-sdk/pull/1720). Other ids are returned unchanged.
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

// serverError is a server's JSON-RPC error. It hides the error's code from errors.Is: the SDK compares errors by code,
// and would take a server's -32003 for the end of the session. errors.As still finds the *jsonrpc.Error.
type serverError struct{ rpc jsonrpc.Error }

func (e *serverError) Error() string { return e.rpc.Message }

// As implements the interface of errors.As for targets of type **jsonrpc.Error.
func (e *serverError) As(target any) bool {
	rpc, ok := target.(**jsonrpc.Error)
	if ok {
		*rpc = &e.rpc
	}
	return ok
}

// maxNesting is how many nested levels of objects and arrays the SDK decodes. The SDK refuses a deeper result as a
// whole, so one deep schema would hide all tools of a list.
const maxNesting = 1000

// limitDepth returns result, with a string in place of each object and array that is nested deeper than maxNesting.
// result must be valid JSON or empty.
func limitDepth(result json.RawMessage) json.RawMessage {
	if !wire.IsDeeper(result, maxNesting) {
		return result
	}
	var out bytes.Buffer
	dec := jsontext.NewDecoder(bytes.NewBuffer(result), wire.Options...)
	enc := jsontext.NewEncoder(&out, wire.Options...)
	for {
		next := dec.PeekKind()
		isContainer := next == '{' || next == '['
		if isContainer && dec.StackDepth() == maxNesting {
			_ = dec.SkipValue()
			_ = enc.WriteToken(jsontext.String("[nested too deep]"))
			continue
		}
		token, err := dec.ReadToken()
		if err != nil { // the end, because result is valid
			return bytes.TrimSpace(out.Bytes())
		}
		_ = enc.WriteToken(token)
	}
}

// standardName returns m without MethodPrefix in its method's name. It does not change m.
func standardName(m *jsonrpc.Request) *jsonrpc.Request {
	name, prefixed := strings.CutPrefix(m.Method, MethodPrefix)
	if !prefixed {
		return m
	}
	out := *m
	out.Method = name
	return &out
}

// oversizeError is the error that ends a connection after a message that was too large. If answers is valid, the
// request with that id fails as TooLarge, and the other requests with an unknown outcome.
type oversizeError struct {
	*Failure
	answers jsonrpc.ID // id of the request that the message answers; invalid if unknown
}

func (e *oversizeError) Unwrap() error { return e.Failure }

// maxIDOffset is how many bytes at the beginning of an oversized message are searched for its id.
const maxIDOffset = 1 << 10

// newOversizeError returns the error for a message of more than limit bytes that begins with head. It searches head
// for the id of the request that the message answers.
func newOversizeError(head []byte, limit int) *oversizeError {
	oversize := &oversizeError{Failure: AnswerTooLarge(limit)}
	head = head[:min(len(head), maxIDOffset)]
	dec := wire.NewDecoder(head)
	isRequest := false // of the server, not an answer
	// The error is ignored, because head ends within a value.
	_ = wire.ReadObject(dec, func(name string) error {
		isRequest = isRequest || name == "method"
		value, err := wire.ReadRaw(dec, head)
		if id, idErr := decodeID(value); name == "id" && err == nil && idErr == nil {
			oversize.answers = ownID(id)
		}
		return err
	})
	if isRequest {
		oversize.answers = jsonrpc.ID{}
	}
	return oversize
}
