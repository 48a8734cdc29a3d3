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

// floor does for a question what has to go over the wire, and no more: it knows what the
// model will say, so its requests are there before, and of the answers it takes the few
// bytes that it passes on. It is no agent.
type floor struct {
	model, tools string
	transport    *http.Transport
	plans        sync.Map // of script to *plan
}

// plan is what can be rendered before a script's first question.
type plan struct {
	script
	head  []byte   // of every request to the model, up to the conversation's last message
	tail  []byte   // of it, behind the conversation
	asked [][]byte // the message with the calls of each round
	calls [][]byte // the tools/call of each call of a round
}

const floorPrompt = `You are a helpful assistant that answers the questions of user. Use the tools you are given whenever they know better than you.`

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
			fmt.Fprintf(&b, `{"id":"call_%d_%d","type":"function","function":{"name":%q,"arguments":%s}}`, round, i, toolName(i), quoteJSON(s.arguments()))
		}
		b.WriteString("]}")
		p.asked = append(p.asked, bytes.Clone(b.Bytes()))
	}
	for i := range s.Calls {
		p.calls = append(p.calls, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, toolName(i), s.arguments()))
	}
	return p
}

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
		a.event("final_answer", a.final())
		a.flush()
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(append([]byte{'{'}, a.final()...), '}'))
}

// floorAnswer is one question on its way.
type floorAnswer struct {
	*floor
	*plan
	ctx     context.Context
	out     http.ResponseWriter // nil for one that is not streamed
	rc      *http.ResponseController
	buf     []byte
	seq     int
	said    []byte   // the answer, as the inside of a JSON string
	results [][]byte // the texts of the results, each a JSON string
}

// post sends one request upstream. It is the bare transport: http.Client costs 4 µs more.
func (a *floorAnswer) post(to string, body []byte) (*http.Response, error) {
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

func (a *floorAnswer) run() error {
	a.event("start", nil)
	a.flush()
	conversation := a.head
	for round := range a.Rounds {
		if err := a.ask(conversation); err != nil {
			return err
		}
		results, err := a.callAll()
		if err != nil {
			return err
		}
		grown := make([]byte, 0, len(conversation)+len(a.asked[round])+a.Calls*(a.Result+a.Result/16+128))
		grown = append(append(grown, conversation...), a.asked[round]...)
		for i, text := range results {
			grown = fmt.Appendf(grown, `,{"role":"tool","tool_call_id":"call_%d_%d","content":`, round, i)
			grown = append(append(grown, text...), '}')
			a.event("tool_result", append([]byte(`"payload":`), text...))
		}
		a.results = append(a.results, results...)
		a.flush()
		conversation = grown
	}
	return a.ask(conversation)
}

// ask sends the conversation to the model, and takes the text of its answer.
func (a *floorAnswer) ask(conversation []byte) error {
	body := make([]byte, 0, len(conversation)+len(a.tail))
	resp, err := a.post(a.model, append(append(body, conversation...), a.tail...))
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
					a.delta(rest[:end])
				}
			}
		}
		if in.Buffered() == 0 {
			a.flush()
		}
	}
}

// callAll makes the calls of one round at the same time.
func (a *floorAnswer) callAll() ([][]byte, error) {
	results, errs := make([][]byte, a.Calls), make([]error, a.Calls)
	var wg sync.WaitGroup
	for i := 1; i < a.Calls; i++ {
		wg.Go(func() { results[i], errs[i] = a.call(i) })
	}
	results[0], errs[0] = a.call(0)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}

// call is the text of a tool's result, as the JSON string that it is.
func (a *floorAnswer) call(i int) ([]byte, error) {
	resp, err := a.post(a.tools, a.calls[i])
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

// event writes one event into the buffer; flush sends what is there.
func (a *floorAnswer) event(name string, fields []byte) {
	if a.out == nil {
		return
	}
	a.frame(name)
	if fields != nil {
		a.buf = append(append(a.buf, ','), fields...)
	}
	a.buf = append(a.buf, "}\n\n"...)
}

func (a *floorAnswer) delta(text []byte) {
	a.frame("text_delta")
	a.buf = append(append(append(a.buf, `,"delta":"`...), text...), "\"}\n\n"...)
}

func (a *floorAnswer) frame(name string) {
	a.seq++
	a.buf = strconv.AppendInt(append(a.buf, "id: run_1:"...), int64(a.seq), 10)
	a.buf = append(append(append(a.buf, "\nevent: "...), name...), "\ndata: {\"type\":\""...)
	a.buf = append(append(a.buf, name...), `","run_id":"run_1","seq":`...)
	a.buf = strconv.AppendInt(a.buf, int64(a.seq), 10)
}

func (a *floorAnswer) flush() {
	if a.out == nil || len(a.buf) == 0 {
		return
	}
	_, _ = a.out.Write(a.buf) // who left is known by the context
	_ = a.rc.Flush()
	a.buf = a.buf[:0]
}

// final are the members of the answer.
func (a *floorAnswer) final() []byte {
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

// serveFloor takes the addresses of the model and of the MCP server.
func serveFloor(args []string) error {
	t := &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 4096, DisableCompression: true}
	return listenAndServe(&floor{model: args[0], tools: args[1], transport: t})
}
