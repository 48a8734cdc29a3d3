package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/sse"
)

// slowModel says a word, and the rest after duration.
type slowModel struct{ duration time.Duration }

func (m slowModel) Stream(ctx context.Context, _ llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		if !yield(llm.Text{Delta: "Wait"}, nil) {
			return
		}
		select {
		case <-ctx.Done():
			yield(nil, ctx.Err())
			return
		case <-time.After(m.duration):
		}
		if yield(llm.Text{Delta: "ed."}, nil) {
			yield(llm.Finish{Reason: "stop"}, nil)
		}
	}
}

// keySetTransport answers every request with a key set, without sockets.
type keySetTransport string

func (p keySetTransport) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(p)))}, nil
}

// runInBubble runs test in a bubble with a service whose callers bring tokens of m, without
// sockets; the model takes an hour. through, unless it is nil, is what readers read.
func runInBubble(t *testing.T, m *mint, through func(*memory.Log) event.Log, test func(t *testing.T, dial func() net.Conn)) {
	t.Helper()
	keys := keySetTransport(jsonText(fields{"keys": []fields{rsaJWK("r", m.rsa)}}))
	synctest.Test(t, func(t *testing.T) {
		v := m.newVerifier(t, func(c *auth.VerifierConfig) {
			c.JWKSURL, c.HTTPClient = "https://iam.example/jwks", &http.Client{Transport: keys}
		})
		tools, err := mcp.New(nil, mcp.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		memoryLog := memory.New(memory.Options{Retention: 24 * time.Hour})
		log := event.Log(memoryLog)
		if through != nil {
			log = through(memoryLog)
		}
		a, err := agent.New(agent.Options{Model: slowModel{time.Hour}, Tools: tools, Log: log, DefaultModel: "slow", DisconnectGrace: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			over, stop := context.WithCancel(context.Background())
			stop()
			a.Drain(over)
			tools.Close()
		})
		test(t, serveOverPipes(t, api.New(api.Options{Agent: a, Log: log, Verifier: v, PublicURL: "https://answerd.example"})))
	})
}

// sendOver sends one request over a connection of its own.
func sendOver(t *testing.T, dial func() net.Conn, method, path, body string, header ...string) *http.Response {
	t.Helper()
	conn := dial()
	t.Cleanup(func() { conn.Close() })
	var head strings.Builder
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: answerd.example\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", method, path, len(body))
	for i := 0; i < len(header); i += 2 {
		fmt.Fprintf(&head, "%s: %s\r\n", header[i], header[i+1])
	}
	go func() { _, _ = io.WriteString(conn, head.String()+"\r\n"+body) }()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// readAllFrames reads a stream to its end.
func readAllFrames(t *testing.T, resp *http.Response) (frames []sse.Frame) {
	t.Helper()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("no stream: %s, want 200", resp.Status)
	}
	for r := sse.NewReader(resp.Body, 1<<20); ; {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			return frames
		}
		if err != nil {
			t.Fatalf("the stream is cut: %v, after %s, want no error", err, eventNames(frames))
		}
		f.Data = append([]byte(nil), f.Data...)
		frames = append(frames, f)
	}
}

// A9: a stream lasts no longer than its token. It reports the expiry and
// ends when a new request with that token would be refused, not earlier; the run continues,
// and with another token so does its reader, who sees nothing twice.
func TestStreamEndsWhenItsTokenExpires(t *testing.T) {
	m := newMint(t)
	runInBubble(t, m, nil, func(t *testing.T, dial func() net.Conn) {
		began := time.Now()
		// 10 s are left of it, and it is taken for 60 s more.
		first := m.validToken(nil, fields{"exp": began.Unix() + 10})
		got := readAllFrames(t, sendOver(t, dial, "POST", "/answer/stream", question, "Authorization", "Bearer "+first))
		if took := time.Since(began); took != 70*time.Second {
			t.Errorf("it took %v, want 70 s", took)
		}
		if want := "start step_start text_start text_delta token_expired"; eventNames(got) != want {
			t.Fatalf("events %q, want %q", eventNames(got), want)
		}
		last, run := got[3].ID, ""
		if end := got[4]; end.ID != "" {
			t.Errorf("the end has an id: %s, want empty", end.ID)
		} else if _, err := fmt.Sscanf(strings.ReplaceAll(string(end.Data), `"`, " "), "{ type : token_expired , run_id : %s , seq :4, ts :", &run); err != nil || run+":4" != last {
			t.Errorf(`data %s, %v, run+":4" %q, want %s and no error`, end.Data, err, run+":4", last)
		}
		if resp := sendOver(t, dial, "GET", "/runs/"+run, "", "Authorization", "Bearer "+first); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("the token is still taken: %s, want 401", resp.Status)
		}
		second := m.validToken(nil, fields{"exp": time.Now().Unix() + 3590})
		got = readAllFrames(t, sendOver(t, dial, "POST", "/answer/stream", question, "Authorization", "Bearer "+second, "Last-Event-ID", last))
		if want := "text_delta text_end step_end final_answer"; eventNames(got) != want {
			t.Errorf("events %q, want %q", eventNames(got), want)
		}
	})
}

// POST /answer was admitted, and is answered whole.
func TestAnswerOutlivesItsToken(t *testing.T) {
	m := newMint(t)
	runInBubble(t, m, nil, func(t *testing.T, dial func() net.Conn) {
		a := decodeResponse[answer](t, sendOver(t, dial, "POST", "/answer", question, "Authorization", "Bearer "+m.validToken(nil, nil)), 200)
		if a.Answer != "Waited." {
			t.Errorf("answer %+v, want Answer Waited.", a)
		}
	})
}

// Each API format reports the expired token in its own form, and can be resumed if the format
// allows it.
func TestFormatsReportTheExpiredToken(t *testing.T) {
	m := newMint(t)
	freshToken := func(header ...string) []string {
		return append(header, "Authorization", "Bearer "+m.validToken(nil, fields{"exp": time.Now().Unix() + 10000, "iat": nil}))
	}
	for name, c := range map[string]struct {
		path, body string
		tail       string // of what the stream says
		goOn       func(t *testing.T, dial func() net.Conn, said []sse.Frame)
	}{
		"Chat Completions": {"/v1/chat/completions", `{"stream":true,"messages":[{"role":"user","content":"x"}]}`,
			`{"error":{"message":"The access token has expired. The run goes on.","type":"authentication_error","param":null,"code":"token_expired"}}`, nil},
		"Responses": {"/v1/responses", `{"stream":true,"input":"x"}`,
			`{"code":"token_expired","message":"The access token has expired. The response goes on.","param":null,"sequence_number":4,"type":"error"}`,
			func(t *testing.T, dial func() net.Conn, said []sse.Frame) {
				_, id, _ := strings.Cut(string(said[0].Data), `"id":"`)
				id, _, _ = strings.Cut(id, `"`)
				rest := readAllFrames(t, sendOver(t, dial, "GET", "/v1/responses/"+id+"?stream=true&starting_after=4", "", freshToken()...))
				if got := eventNames(rest); !strings.HasPrefix(got, "response.output_text.delta response.output_text.done") || !strings.Contains(string(rest[0].Data), `"sequence_number":5,`) {
					t.Errorf(`events %s, %s, want it to start with "response.output_text.delta response.output_text.done", Data containing "sequence_number":5,`, got, rest[0].Data)
				}
			}},
		"AI SDK": {"/api/chat", `{"id":"c","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"x"}]}]}`,
			`{"errorText":"The access token has expired. The answer goes on.","type":"error"} [DONE]`,
			func(t *testing.T, dial func() net.Conn, _ []sse.Frame) {
				rest := readAllFrames(t, sendOver(t, dial, "GET", "/api/chat/c/stream", "", freshToken()...))
				if got := frameData(rest); !strings.HasPrefix(got, `{"messageId":`) || !strings.Contains(got, `"delta":"Wait"`) || !strings.Contains(got, `"finishReason":"stop"`) || strings.Contains(got, "expired") {
					t.Errorf(`data %q, want it to start with {"messageId": and to contain "delta":"Wait" and to contain "finishReason":"stop" and without expired`, got)
				}
			}},
		"AG-UI": {"/agui", `{"threadId":"t","runId":"r","state":{},"messages":[{"id":"m","role":"user","content":"x"}],"tools":[],"context":[],"forwardedProps":{}}`,
			`"type":"RUN_ERROR"}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			runInBubble(t, m, nil, func(t *testing.T, dial func() net.Conn) {
				said := readAllFrames(t, sendOver(t, dial, "POST", c.path, c.body, "Authorization", "Bearer "+m.validToken(nil, nil)))
				if got := frameData(said); !strings.HasSuffix(got, c.tail) || !strings.Contains(got, "Wait") || strings.Count(got, "expired.") != 1 {
					t.Errorf("data %s, want it to end in %s and to contain Wait, 1 times expired.", got, c.tail)
				}
				if c.goOn != nil {
					c.goOn(t, dial, said)
				}
			})
		})
	}
}

func frameData(frames []sse.Frame) string {
	var out []string
	for _, f := range frames {
		out = append(out, string(f.Data))
	}
	return strings.Join(out, " ")
}

// endlessLog is a log that appends an event, one second later, whenever it is read: a reader never reaches its end.
type endlessLog struct{ *memory.Log }

func (l endlessLog) After(ctx context.Context, run string, pos int64) (event.Page, error) {
	<-time.After(time.Second)
	if _, err := l.Append(ctx, run, event.TextDelta{PartID: "p", Delta: "and"}); err != nil {
		return event.Page{}, err
	}
	return l.Log.After(ctx, run, pos)
}

// A stream ends when its token expires, also if it reads a run that never stops emitting events.
func TestBusyStreamEndsWhenItsTokenExpires(t *testing.T) {
	m := newMint(t)
	runInBubble(t, m, func(log *memory.Log) event.Log { return endlessLog{log} }, func(t *testing.T, dial func() net.Conn) {
		began := time.Now()
		got := readAllFrames(t, sendOver(t, dial, "POST", "/answer/stream", question, "Authorization", "Bearer "+m.validToken(nil, nil)))
		if took := time.Since(began); took < 6*time.Minute || took > 7*time.Minute || got[len(got)-1].Event != "token_expired" {
			t.Errorf("took %v, %s, want took at least 6 min, took at most 7 min, Event token_expired", took, got[len(got)-1].Event)
		}
	})
}
