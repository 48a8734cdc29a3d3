package mcp

import (
	"bytes"
	"encoding/json"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// overlong is the end of a connection at a message of more than maxBody bytes. It
// knows which request the message would have answered, if its beginning says so: that
// one call learns that its answer is too large, not that its outcome is unknown.
type overlong struct {
	*transport.Failure
	answers jsonrpc.ID // invalid where unknown
}

func (o *overlong) Unwrap() error { return o.Failure }

// idWithin is how far into a message its id is looked for.
const idWithin = 1 << 10

// newOverlong is for a message that begins with head.
func newOverlong(head []byte) *overlong {
	o := &overlong{Failure: transport.AnswerTooLarge(maxBody)}
	dec := json.NewDecoder(bytes.NewReader(head[:min(len(head), idWithin)]))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return o
	}
	var id any
	for dec.More() {
		name, err := dec.Token()
		if err != nil || name == "method" {
			return o // the server's own request
		}
		var value any
		if dec.Decode(&value) != nil {
			break // the head ends here
		}
		if name == "id" {
			id = value
		}
	}
	o.answers, _ = jsonrpc.MakeID(id)
	return o
}
