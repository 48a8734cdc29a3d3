package api_test

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"answerd/internal/api/native"
	"answerd/internal/event"
)

var updateThreads = flag.Bool("update-threads", false, "write the golden files of the thread scenarios")

// The ids, times and lengths of a recorded exchange differ in each run of a test.
var (
	runName    = regexp.MustCompile(`[a-z2-7]{26}`)
	timeOf     = regexp.MustCompile(`"(created_at|updated_at|created|completed_at|ts|timestamp)":\s?(?:"[^"]*"|\d+)`)
	durationOf = regexp.MustCompile(`"duration_ms":\d+`)
	traceOf    = regexp.MustCompile(`"trace_id":"[0-9a-f]*"`)
)

// recorder records exchanges for a golden file.
type recorder struct {
	strings.Builder
	names map[string]string
}

// record adds a request and its response, with short names in place of ids.
func (r *recorder) record(request string, status int, body string) {
	body = timeOf.ReplaceAllString(body, `"$1":0`)
	body = durationOf.ReplaceAllString(body, `"duration_ms":0`)
	body = traceOf.ReplaceAllString(body, `"trace_id":""`)
	text := fmt.Sprintf("> %s\n< %d\n%s\n\n", request, status, strings.TrimSpace(body))
	r.WriteString(runName.ReplaceAllStringFunc(text, func(id string) string {
		if r.names[id] == "" {
			r.names[id] = fmt.Sprint(len(r.names) + 1)
		}
		return r.names[id]
	}))
}

// checkGolden compares what was recorded with the golden file of that name.
func (r *recorder) checkGolden(t *testing.T, name string) {
	t.Helper()
	path := filepath.Join("testdata", "threads", name+".txt")
	if *updateThreads {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(r.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (-update-threads makes it), want no error", err)
	}
	if r.String() != string(want) {
		t.Errorf("%s is not what it was, which -update-threads would make of it:\n%s, want\n%s", path, r.String(), want)
	}
}

// threadFormat asks one question in a thread, in one API format.
type threadFormat struct {
	name, path string
	body       func(thread, question, onBusy string) string
	header     []string
}

func answerdMember(onBusy, more string) string {
	var members []string
	if more != "" {
		members = append(members, more)
	}
	if onBusy != "" {
		members = append(members, `"on_busy":"`+onBusy+`"`)
	}
	return `"answerd":{` + strings.Join(members, ",") + `}`
}

func busyMember(onBusy string) string {
	if onBusy == "" {
		return ""
	}
	return `,"on_busy":"` + onBusy + `"`
}

var threadFormats = []threadFormat{
	{"native", "/answer", func(thread, question, onBusy string) string {
		return fmt.Sprintf(`{"question":%q,"thread_id":%q%s}`, question, thread, busyMember(onBusy))
	}, nil},
	{"stream", "/answer/stream", func(thread, question, onBusy string) string {
		return fmt.Sprintf(`{"question":%q,"thread_id":%q%s}`, question, thread, busyMember(onBusy))
	}, nil},
	{"chat", "/v1/chat/completions", func(thread, question, onBusy string) string {
		return fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],%s}`, question, answerdMember(onBusy, fmt.Sprintf(`"thread_id":%q`, thread)))
	}, nil},
	{"responses", "/v1/responses", func(thread, question, onBusy string) string {
		return fmt.Sprintf(`{"input":%q,"conversation":%q,%s}`, question, thread, answerdMember(onBusy, ""))
	}, nil},
	{"aisdk", "/api/chat", func(thread, question, onBusy string) string {
		return fmt.Sprintf(`{"id":%q,"messages":[{"id":"u","role":"user","parts":[{"type":"text","text":%q}]}],%s}`, thread, question, answerdMember(onBusy, ""))
	}, nil},
	{"agui", "/agui", func(thread, question, onBusy string) string {
		return fmt.Sprintf(`{"threadId":%q,"runId":"r","messages":[{"id":"u","role":"user","content":%q}],"forwardedProps":{%s}}`, thread, question, answerdMember(onBusy, ""))
	}, nil},
	{"mcp", "/mcp", func(thread, question, onBusy string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"answer","arguments":{"question":%q,"thread_id":%q%s},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, question, thread, busyMember(onBusy))
	}, []string{"Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "answer"}},
}

// send asks a question and returns the whole response.
func (f threadFormat) send(t *testing.T, s *service, thread, question, onBusy string) (request string, status int, body string) {
	t.Helper()
	request = f.body(thread, question, onBusy)
	resp := s.do(t, "POST", f.path, request, f.header...)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return "POST " + f.path + " " + request, resp.StatusCode, string(b)
}

func (r *recorder) get(t *testing.T, s *service, path string) {
	t.Helper()
	resp := s.do(t, "GET", path, "")
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	r.record("GET "+path, resp.StatusCode, string(b))
}

// A thread that goes through the formats, with what each client reads and what the thread has in the end.
func TestThreadAcrossThreeFormatsMatchesItsGoldenFile(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"aisdk", "responses", "agui", "native"}, {"chat", "mcp", "stream"}} {
		s := newService(t, countingModel, nil, nil)
		r := &recorder{names: make(map[string]string)}
		for i, name := range order {
			for _, f := range threadFormats {
				if f.name == name {
					r.record(f.send(t, s, "thr_x", []string{"one", "add them", "three", "four"}[i], ""))
				}
			}
		}
		r.get(t, s, "/threads")
		r.get(t, s, "/threads/thr_x")
		r.record("the last request to the model", http.StatusOK, s.lastConversation())
		r.checkGolden(t, "across-"+strings.Join(order, "-"))
	}
}

// A question on a busy thread, in each format and each form of on_busy.
func TestOnBusyMatchesItsGoldenFiles(t *testing.T) {
	t.Parallel()
	for _, onBusy := range []string{"", "queue", "cancel"} {
		for _, f := range threadFormats {
			name := "busy-" + map[string]string{"": "refuse"}[onBusy] + onBusy + "-" + f.name
			t.Run(name, func(t *testing.T) {
				open := make(chan struct{})
				s := newService(t, waitingModel(open), nil, nil)
				active := decodeResponse[native.Status](t, s.do(t, "POST", "/answer", `{"question":"one","thread_id":"thr_x","background":true}`), 202)
				readFrames(t, s.do(t, "GET", "/runs/"+active.RunID+"/events", ""), "text_delta")
				if onBusy == "queue" {
					close(open) // the active run ends while the question arrives, or right before
				}
				r := &recorder{names: make(map[string]string)}

				if onBusy == "cancel" {
					go func() {
						_ = s.waitUntilEnded(active.RunID)
						close(open)
					}()
				}

				r.record(f.send(t, s, "thr_x", "two", onBusy))
				if onBusy == "" {
					close(open)
				}
				if err := s.waitUntilEnded(active.RunID); err != nil {
					t.Fatal(err)
				}
				r.get(t, s, "/threads/thr_x")
				r.checkGolden(t, name)
			})
		}
	}
}

// waitUntilEnded reads a run to its end.
func (s *service) waitUntilEnded(id string) error {
	resp, err := s.Client().Get(s.URL + "/runs/" + id + "/events")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// A turn that another version has stored, or that is damaged, does not hide the other turns.
func TestThreadLeavesOutATurnThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newService(t, countingModel, nil, nil)
	askers[0].ask(t, s, "t", "one")
	if _, err := s.Log.BeginTurn(t.Context(), event.Owner{}, "t", "run_newer", "", "x"); err != nil {
		t.Fatal(err)
	}
	if err := s.Log.EndTurn(t.Context(), event.Owner{}, "t", "run_newer", []byte(`{"version":99}`)); err != nil {
		t.Fatal(err)
	}
	askers[0].ask(t, s, "t", "two")
	var got []string
	for _, m := range decodeResponse[native.ThreadMessages](t, s.do(t, "GET", "/threads/t", ""), 200).Messages {
		got = append(got, m.Content)
	}
	if want := "one Answer 1. two Answer 2."; strings.Join(got, " ") != want {
		t.Errorf("messages %q, want %q", strings.Join(got, " "), want)
	}
}
