package eval

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// runSuite runs a suite with one case against a service whose POST requests are answered by answer.
func runSuite(t *testing.T, suite string, answer http.HandlerFunc) RunReport {
	t.Helper()
	s, err := Parse([]byte(suite), FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /agents", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"agents":[]}`) })
	mux.HandleFunc("POST /", answer)
	server := httptest.NewServer(mux)
	defer server.Close()
	report, err := Run(t.Context(), s, Options{URL: server.URL})
	if err != nil || len(report.Cases) != 1 || len(report.Cases[0].Results) != 1 {
		t.Fatalf("got %+v, %v, want one result", report, err)
	}
	return report.Cases[0].Results[0]
}

// answerAfter refuses the first n questions with a status, a problem document and Retry-After, and answers the others. It
// counts all questions in requests.
func answerAfter(n, status int, problem string, requests *int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if *requests++; *requests <= n {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(status)
			fmt.Fprint(w, problem)
			return
		}
		fmt.Fprint(w, `{"run_id":"run_1","answer":"b"}`)
	}
}

// A service that runs fewer questions at a time than the suite asks refuses the others until the first ones end. The
// time until then is longer than the run may take, and does not count.
func TestRunWaitsForABusyServiceOutsideOfMaxSeconds(t *testing.T) {
	t.Parallel()
	requests := 0
	got := runSuite(t, "cases: [{name: a, question: a, expect: {max_seconds: 0.5}}]",
		answerAfter(6, http.StatusTooManyRequests, `{"code":"rate_limited"}`, &requests))
	if !got.Passed || requests != 7 || got.Seconds >= 0.5 {
		t.Errorf("got %+v after %d requests, want a pass after 7, within 0.5 s", got, requests)
	}
}

func TestRunIsCancelledAtMaxSeconds(t *testing.T) {
	t.Parallel()
	got := runSuite(t, "cases: [{name: a, question: a, expect: {max_seconds: 0.1}}]", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // net/http notices only then that the caller is gone
		<-r.Context().Done()
	})
	if got.Passed || len(got.Failures) != 1 || got.Failures[0].Expect != "max_seconds" {
		t.Errorf("got %+v, want a failure of max_seconds", got)
	}
}

// A run that was suspended does not end with the connection of its question.
func TestSuspendedRunIsCancelledAfterAFailure(t *testing.T) {
	t.Parallel()
	for failure, interrupts := range map[string]string{"max_seconds": "", "run": `{"id":"i"}`} {
		cancelled := make(chan string, 1)
		got := runSuite(t, "cases: [{name: a, question: a, expect: {max_seconds: 0.1}}]", func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/answer":
				w.WriteHeader(http.StatusAccepted)
				fmt.Fprintf(w, `{"run_id":"run_1","interrupts":[%s]}`, interrupts)
			case "/runs/run_1/input":
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprint(w, `{"code":"forbidden"}`)
			default:
				cancelled <- r.Method + " " + r.URL.Path
			}
		})
		if len(got.Failures) != 1 || got.Failures[0].Expect != failure {
			t.Errorf("got %+v, want a failure of %s", got, failure)
		}
		select {
		case got := <-cancelled:
			if want := "POST /runs/run_1/cancel"; got != want {
				t.Errorf("%s: request %s, want %s", failure, got, want)
			}
		default:
			t.Errorf("%s: no request after the failure, want one that cancels the run", failure)
		}
	}
}

// A 429 or 503 for an answer to an interrupt is not the end of the run, which still waits for the answer.
func TestInputIsSentAgainToABusyService(t *testing.T) {
	t.Parallel()
	for status, code := range map[int]string{http.StatusTooManyRequests: "rate_limited", http.StatusServiceUnavailable: "log_unavailable"} {
		inputs := 0
		got := runSuite(t, "cases: [{name: a, question: a, expect: {contains: b}}]", func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/runs/run_1/input":
				if inputs++; inputs == 1 {
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(status)
					fmt.Fprintf(w, `{"code":%q}`, code)
				}
			case inputs < 2:
				w.WriteHeader(http.StatusAccepted)
				fmt.Fprint(w, `{"run_id":"run_1","interrupts":[{"id":"i","kind":"approval","tool":"t"}]}`)
			default:
				fmt.Fprint(w, `{"run_id":"run_1","answer":"b"}`)
			}
		})
		if !got.Passed || inputs != 2 || len(got.Declined) != 1 {
			t.Errorf("%s: got %+v after %d inputs, want a pass after 2, with one declined call", code, got, inputs)
		}
	}
}

// The report has the run's id, with which its events can be read. The question is not repeated, although the code says
// that the service is too busy: with the same key it would attach to the failed run.
func TestFailedRunIsReportedWithItsID(t *testing.T) {
	t.Parallel()
	requests := 0
	got := runSuite(t, "cases: [{name: a, question: a, expect: {contains: b}}]", func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"code":"overloaded","instance":"/base/runs/run_1"}`)
	})
	if got.RunID != "run_1" || got.Passed || requests > 2 { // the second one may cancel the run
		t.Errorf("got %+v after %d requests, want the failed run run_1 after at most 2", got, requests)
	}
}

// A process that shuts down hands the run over, and the same question attaches to it in another process.
func TestRunThatIsHandedOverIsAwaited(t *testing.T) {
	t.Parallel()
	requests := 0
	got := runSuite(t, "cases: [{name: a, question: a, expect: {contains: b}}]",
		answerAfter(1, http.StatusServiceUnavailable, `{"code":"draining","instance":"/runs/run_1"}`, &requests))
	if !got.Passed || requests != 2 {
		t.Errorf("got %+v after %d requests, want a pass after 2", got, requests)
	}
}

// A float has 53 bits, and ids have more. A model that rounds one has not given the right answer.
func TestRunComparesLargeIntegersExactly(t *testing.T) {
	const suite = "cases: [{name: a, question: a, expect: {json: {/id: 18446744073709551615}, schema: {properties: {id: {const: 18446744073709551615}}}}}]"
	for id, want := range map[string]bool{"18446744073709551615": true, "18446744073709551616": false, "18446744073709550000": false} {
		got := runSuite(t, suite, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"run_id":"run_1","answer":"","output":{"id":%s}}`, id)
		})
		if got.Passed != want || !want && len(got.Failures) != 2 {
			t.Errorf("%s: got %+v, want passed %t, or a failure of json and of schema", id, got, want)
		}
	}
}
