package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
)

// floor is a server that answers questions with the least work that a net/http program can do. The script tells it what
// the model will say, so it renders its requests in advance, and takes from the replies only the bytes that it passes
// on. It is not an agent.
type floor struct {
	model, tools string
	transport    *http.Transport
	plans        sync.Map // *plan by script
}

// plan holds the parts of a script's requests that are the same for every question, rendered once.
type plan struct {
	script
	head  []byte   // of all requests to the model, up to the question
	tail  []byte   // of all requests to the model, after the conversation
	asked [][]byte // by round: the model's message with its tool calls
	calls [][]byte // by call of a round: the tools/call request
}

// floorPrompt is repeated until it is as long as answerd's system prompt.
const floorPrompt = `You are a helpful assistant that answers the questions of user. Use the tools you are given whenever they know better than you.`

// newPlan renders the requests of a script.
func newPlan(s script) *plan {
	p := &plan{script: s}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"model":%q,"messages":[{"role":"system","content":%s}`, s, quoteJSON(strings.Repeat(floorPrompt, 9)))

	for i := range s.History {
		fmt.Fprintf(&b, `,{"role":%q,"content":%q}`, []string{"user", "assistant"}[i%2], strings.Repeat("past ", 4096/5))
	}

	b.WriteString(`,{"role":"user","content":"What is known about it?"}`)
	p.head = bytes.Clone(b.Bytes())
	b.Reset()
	b.WriteString(`],"stream":true,"stream_options":{"include_usage":true},"tool_choice":"auto","tools":[`)

	for i := range s.Tools {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"type":"function","function":{"name":%q,"description":%q,"parameters":%s}}`, toolName(i), toolDescription(i), toolSchema)
	}

	b.WriteString("]}")
	p.tail = bytes.Clone(b.Bytes())

	for round := range s.Rounds {
		b.Reset()
		b.WriteString(`,{"role":"assistant","content":null,"tool_calls":[`)
		for i := range s.Calls {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"id":"call_%d_%d","type":"function","function":{"name":%q,"arguments":%s}}`, round, i, toolName(i), quoteJSON(s.callArguments()))
		}
		b.WriteString("]}")
		p.asked = append(p.asked, bytes.Clone(b.Bytes()))
	}

	for i := range s.Calls {
		p.calls = append(p.calls, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, toolName(i), s.callArguments()))
	}
	return p
}

// ServeHTTP answers one question, as a stream or as one document. It aborts the connection if the model or a tool
// fails.
func (f *floor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	s, ok := scriptIn(body)
	if err != nil || !ok {
		http.Error(w, "no script", http.StatusBadRequest)
		return
	}
	made, ok := f.plans.Load(s)
	if !ok {
		made, _ = f.plans.LoadOrStore(s, newPlan(s))
	}
	a := &floorAnswer{floor: f, plan: made.(*plan), ctx: r.Context()}
	if strings.HasSuffix(r.URL.Path, "/stream") {
		a.out, a.rc = w, http.NewResponseController(w)
		w.Header().Set("Content-Type", "text/event-stream")
	}
	if err := a.run(); err != nil {
		panic(http.ErrAbortHandler)
	}
	if a.out != nil {
		a.appendEvent("final_answer", a.finalMembers())
		a.flushBuffer()
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(append([]byte{'{'}, a.finalMembers()...), '}'))
}

// floorAnswer is the state of one answer.
type floorAnswer struct {
	*floor
	*plan
	ctx     context.Context
	out     http.ResponseWriter // nil unless the answer is streamed
	rc      *http.ResponseController
	buf     []byte
	seq     int
	said    []byte   // the answer so far, escaped as in a JSON string
	results [][]byte // the texts of the tool results, each a JSON string
}

// postJSON sends one request to the model or the MCP server. It uses the transport directly,
// because http.Client costs 4 µs more.
func (a *floorAnswer) postJSON(to string, body []byte) (*http.Response, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	r := &http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}},
		Body:   io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	return a.transport.RoundTrip(r.WithContext(a.ctx))
}

// run executes the rounds: it asks the model, calls the tools, and adds their results to the
// conversation, until the model gives its answer.
func (a *floorAnswer) run() error {
	a.appendEvent("start", nil)
	a.flushBuffer()
	conversation := a.head
	for round := range a.Rounds {
		if err := a.askModel(conversation); err != nil {
			return err
		}
		results, err := a.callTools()
		if err != nil {
			return err
		}
		grown := make([]byte, 0, len(conversation)+len(a.asked[round])+a.Calls*(a.Result+a.Result/16+128))
		grown = append(append(grown, conversation...), a.asked[round]...)
		for i, text := range results {
			grown = fmt.Appendf(grown, `,{"role":"tool","tool_call_id":"call_%d_%d","content":`, round, i)
			grown = append(append(grown, text...), '}')
			a.appendEvent("tool_result", append([]byte(`"payload":`), text...))
		}
		a.results = append(a.results, results...)
		a.flushBuffer()
		conversation = grown
	}
	return a.askModel(conversation)
}

// askModel sends the conversation to the model and collects the text of its answer.
func (a *floorAnswer) askModel(conversation []byte) error {
	body := make([]byte, 0, len(conversation)+len(a.tail))
	resp, err := a.postJSON(a.model, append(append(body, conversation...), a.tail...))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	in := bufio.NewReaderSize(resp.Body, 16<<10)
	for {
		line, err := in.ReadSlice('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if _, rest, ok := bytes.Cut(line, []byte(`"delta":{"content":"`)); ok {
			if end := bytes.IndexByte(rest, '"'); end > 0 {
				a.said = append(a.said, rest[:end]...)
				if a.out != nil {
					a.appendDelta(rest[:end])
				}
			}
		}
		if in.Buffered() == 0 {
			a.flushBuffer()
		}
	}
}

// callTools executes the calls of one round in parallel. It returns their results in the order of the calls.
func (a *floorAnswer) callTools() ([][]byte, error) {
	results, errs := make([][]byte, a.Calls), make([]error, a.Calls)
	var wg sync.WaitGroup
	for i := 1; i < a.Calls; i++ {
		wg.Go(func() { results[i], errs[i] = a.callTool(i) })
	}
	results[0], errs[0] = a.callTool(0)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}

// callTool makes the i-th call of a round. It returns the text of the result as a JSON string, as it is in the
// response.
func (a *floorAnswer) callTool(i int) ([]byte, error) {
	resp, err := a.postJSON(a.tools, a.calls[i])
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body := bytes.NewBuffer(make([]byte, 0, a.Result+a.Result/16+512))
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return nil, err
	}
	_, rest, found := bytes.Cut(body.Bytes(), []byte(`"text":`))
	end := bytes.LastIndex(rest, []byte(`}]}}`))
	if !found || end < 0 {
		return nil, fmt.Errorf("no result in %.80q", body)
	}
	return rest[:end], nil
}

// appendEvent adds one event to the buffer, which flushBuffer sends.
func (a *floorAnswer) appendEvent(name string, fields []byte) {
	if a.out == nil {
		return
	}
	a.beginFrame(name)
	if fields != nil {
		a.buf = append(append(a.buf, ','), fields...)
	}
	a.buf = append(a.buf, "}\n\n"...)
}

// appendDelta adds a text_delta to the buffer.
func (a *floorAnswer) appendDelta(text []byte) {
	a.beginFrame("text_delta")
	a.buf = append(append(append(a.buf, `,"delta":"`...), text...), "\"}\n\n"...)
}

// beginFrame adds the start of an SSE frame to the buffer: its id, its event name, and the members that the data of all
// events has. The caller adds the event's own members and ends the frame.
func (a *floorAnswer) beginFrame(name string) {
	a.seq++
	a.buf = strconv.AppendInt(append(a.buf, "id: run_1:"...), int64(a.seq), 10)
	a.buf = append(append(append(a.buf, "\nevent: "...), name...), "\ndata: {\"type\":\""...)
	a.buf = append(append(a.buf, name...), `","run_id":"run_1","seq":`...)
	a.buf = strconv.AppendInt(a.buf, int64(a.seq), 10)
}

// flushBuffer sends the buffer to the client and empties it. It does nothing unless the answer is streamed.
func (a *floorAnswer) flushBuffer() {
	if a.out == nil || len(a.buf) == 0 {
		return
	}
	_, _ = a.out.Write(a.buf) // the context ends if the client has left
	_ = a.rc.Flush()
	a.buf = a.buf[:0]
}

// finalMembers returns the JSON members of the final answer, without the braces around them.
func (a *floorAnswer) finalMembers() []byte {
	size := len(a.said) + 256
	for _, r := range a.results {
		size += len(r) + 1
	}
	b := append(make([]byte, 0, size), `"answer":"`...)
	b = append(append(b, a.said...), `","metadata":{"tool_results":[`...)
	for i, r := range a.results {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, r...)
	}
	return append(b, `]}`...)
}

// serveFloor runs the role floor. Its arguments are the URLs of the model and the MCP server.
func serveFloor(args []string) error {
	t := &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 4096, DisableCompression: true}
	return listenAndServe(&floor{model: args[0], tools: args[1], transport: t})
}
