package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// model is an OpenAI-compatible endpoint that answers with scripts, as fast as it can.
type model struct {
	requests atomic.Int64
	open     atomic.Int64 // requests in flight
	replies  sync.Map     // *reply by replyKey
}

// replyKey identifies a reply: the script, and how many rounds of calls have been executed.
type replyKey struct {
	script
	round int
}

// reply is one answer of the model as the chunks of a stream. It is built once per script.
type reply struct{ chunks [][]byte }

// chunkHead begins each chunk.
const chunkHead = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"scripted","system_fingerprint":"fp_1","choices":[`

// reply builds the model's reply: the calls of the round, or the final answer after the last round.
func (k replyKey) reply() *reply {
	r := &reply{}
	add := func(choices, rest string) {
		r.chunks = append(r.chunks, []byte("data: "+chunkHead+choices+"]"+rest+"}\n\n"))
	}
	choice := func(delta, finish string) {
		add(`{"index":0,"delta":`+delta+`,"logprobs":null,"finish_reason":`+finish+`}`, `,"usage":null`)
	}
	choice(`{"role":"assistant","content":"","refusal":null}`, "null")
	finish := `"stop"`
	if k.round < k.Rounds {
		finish = `"tool_calls"`
		for i := range k.Calls {
			choice(fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":"call_%d_%d","type":"function","function":{"name":%q,"arguments":""}}]}`, i, k.round, i, toolName(i)), "null")
			choice(fmt.Sprintf(`{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]}`, i, quoteJSON(k.callArguments())), "null")
		}
	} else {
		for i := range k.Tokens {
			choice(`{"content":`+quoteJSON(tokenText(i))+`}`, "null")
		}
	}
	choice("{}", finish)
	add("", fmt.Sprintf(`,"usage":{"prompt_tokens":100,"completion_tokens":%d,"total_tokens":%d}`, k.Tokens, 100+k.Tokens))
	r.chunks = append(r.chunks, []byte("data: [DONE]\n\n"))
	return r
}

// callArguments returns the arguments of a call.
func (s script) callArguments() string {
	return fmt.Sprintf(`{"size":%d,"delay":%d}`, s.Result, s.Delay)
}

// ServeHTTP serves chat completions, and counts them for /stats.
func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/stats" {
		fmt.Fprintf(w, `{"requests":%d,"open":%d}`, m.requests.Load(), m.open.Load())
		return
	}
	m.requests.Add(1)
	m.open.Add(1)
	defer m.open.Add(-1)
	body, err := io.ReadAll(r.Body)
	s, ok := scriptIn(body)
	if err != nil || !ok {
		http.Error(w, "no script", http.StatusBadRequest)
		return
	}
	key := replyKey{s, 0}
	if s.Calls > 0 {
		key.round = bytes.Count(body, []byte(`"role":"tool"`)) / s.Calls
	}
	made, ok := m.replies.Load(key)
	if !ok {
		made, _ = m.replies.LoadOrStore(key, key.reply())
	}
	if s.Delay > 0 {
		time.Sleep(s.delay())
	}
	w.Header().Set("Content-Type", "text/event-stream")
	writeChunks(w, r, made.(*reply).chunks, s)
}

// writeChunks writes the chunks at the script's pace: at once, one by one, or with pauses. If the script hangs, it
// stops in the middle and waits until the client disconnects.
func writeChunks(w http.ResponseWriter, r *http.Request, chunks [][]byte, s script) {
	rc := http.NewResponseController(w)
	if s.Each == 0 && s.Pace == 0 && s.Hang == 0 {
		_, _ = w.Write(bytes.Join(chunks, nil))
		return
	}
	var tick <-chan time.Time
	if s.Pace > 0 {
		t := time.NewTicker(time.Duration(s.Pace) * time.Millisecond)
		defer t.Stop()
		tick = t.C
	}
	for i, c := range chunks {
		if s.Hang == 1 && i > len(chunks)/2 {
			<-r.Context().Done()
			return
		}
		if _, err := w.Write(c); err != nil || rc.Flush() != nil {
			return
		}
		if tick != nil {
			<-tick
		}
	}
}

// serveModel runs the role model.
func serveModel([]string) error { return listenAndServe(&model{}) }

// listenAndServe serves h on a free port of 127.0.0.1. It prints the address to stdout, where startProcess in the
// parent process reads it.
func listenAndServe(h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return (&http.Server{Handler: h}).Serve(l)
}
