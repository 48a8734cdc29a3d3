package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"answerd/internal/api"
)

func TestCORSAllowsConfiguredOriginsOnly(t *testing.T) {
	t.Parallel()
	const origin = "https://app.example"
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.CORSOrigins = []string{origin} })
	pre := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type,last-event-id"}
	ok := s.do(t, "OPTIONS", "/answer/stream", "", append(pre, "Origin", origin)...)
	if ok.StatusCode != 204 || ok.Header.Get("Access-Control-Allow-Origin") != origin || ok.Header.Get("Access-Control-Allow-Credentials") != "" ||
		!strings.Contains(ok.Header.Get("Access-Control-Allow-Headers"), "Last-Event-ID, Prefer") {
		t.Errorf(`preflight %s %v, want status 204, Access-Control-Allow-Origin %s, Access-Control-Allow-Credentials empty, Access-Control-Allow-Headers containing "Last-Event-ID, Prefer"`, ok.Status, ok.Header, origin)
	}
	sent := []string{"user-agent", "x-stainless-lang", "baggage", "traceparent"} // by OpenAI's client in Firefox, and by OpenTelemetry
	resp := s.do(t, "OPTIONS", "/v1/responses", "", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", strings.Join(sent, ","), "Origin", origin)
	got := strings.Split(strings.ToLower(resp.Header.Get("Access-Control-Allow-Headers")), ", ")
	if slices.ContainsFunc(sent, func(name string) bool { return !slices.Contains(got, name) }) {
		t.Errorf("preflight: got Access-Control-Allow-Headers %q, want %q in it", got, sent)
	}
	for _, other := range []string{"https://app.example.evil", "http://app.example", "https://APP.example", "null"} {
		resp := s.do(t, "OPTIONS", "/answer/stream", "", append(pre, "Origin", other)...)
		wantProblem(t, resp, 403, "forbidden")
		if resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s is allowed, Access-Control-Allow-Origin %q, want empty", other, resp.Header.Get("Access-Control-Allow-Origin"))
		}
	}
	resp = s.do(t, "POST", "/answer", question, "Origin", origin, "Sec-Fetch-Site", "cross-site")
	if resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != origin || !strings.Contains(fmt.Sprint(resp.Header["Vary"]), "Origin") {
		t.Errorf(`call %s %v, want status 200, Access-Control-Allow-Origin %s, Header["Vary"] containing Origin`, resp.Status, resp.Header, origin)
	}
	bad := s.do(t, "POST", "/answer", `{}`, "Origin", origin)
	if wantProblem(t, bad, 400, "invalid_request"); bad.Header.Get("Access-Control-Allow-Origin") != origin {
		t.Errorf("the page cannot read why it was refused: Access-Control-Allow-Origin %q, want %q", bad.Header.Get("Access-Control-Allow-Origin"), origin)
	}
}
