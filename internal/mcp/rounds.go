package mcp

import (
	"bytes"
	"encoding/json"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	maxRounds = 10 // requests of one call, as in the SDK
	roundWait = 50 * time.Millisecond
)

// callTool sends a call, and sends it again as long as the server says that it is not
// finished and gives a state to go on with (2026-07-28 basic/utilities/mrtr). The SDK
// does so where the answer asks something of the client, be it nothing at all; an
// answer with a state alone it takes for the result. Each round waits twice as long as
// the one before: a server may answer so because it has too much to do.
func (x *exchange) callTool(cs *sdk.ClientSession, params *sdk.CallToolParams) error {
	for wait := roundWait; ; wait *= 2 {
		_, err := cs.CallTool(x.ctx, params)
		state := unfinished(x.received())
		if err != nil && state != "" {
			x.begin(x.asked(), methodCall) // what an earlier round brought is no result
		}
		if err != nil || state == "" || wait == roundWait<<(maxRounds-1) {
			return err
		}
		next := *params
		next.RequestState = state
		params = &next
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-x.ctx.Done():
			timer.Stop()
			x.begin(x.asked(), methodCall)
			return x.ctx.Err()
		}
	}
}

// unfinished is the state that a result wants to be asked again with; "" for a result
// that is one, or whose questions the SDK has been through.
func unfinished(result json.RawMessage) string {
	if !bytes.Contains(result, []byte(`"input_required"`)) {
		return ""
	}
	var w struct {
		ResultType string          `json:"resultType"`
		State      string          `json:"requestState"`
		Asked      json.RawMessage `json:"inputRequests"`
	}
	if json.Unmarshal(result, &w) != nil || w.ResultType != "input_required" || len(w.Asked) > 0 && string(w.Asked) != "null" {
		return ""
	}
	return w.State
}
