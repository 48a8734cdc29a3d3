package native

import "answerd/internal/agent"

// DecodeToolCall reads the body of POST /tools/{name}/call, which says all but the
// tool's name. The error is an *Invalid.
func DecodeToolCall(body []byte) (agent.ToolCall, error) {
	d := newDecoder("", body)
	var call agent.ToolCall
	for name := range d.readObject() {
		switch name {
		case "args":
			call.Args = d.readRaw() // as its caller wrote it
		case "context":
			call.Context = d.readPairs()
		case "approved":
			call.Approved = d.readBool()
		default:
			d.rejectUnknown()
		}
	}
	return call, d.finishBody()
}
