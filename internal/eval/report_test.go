package eval

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// newReport returns a report of three cases, whose runs are as expected where passed has a 1.
func newReport(configuration string, passed ...string) Report {
	cost := 0.0125
	s := Suite{Name: "support <1>", Cases: []Case{
		{Name: "an order that exists", Line: 3, Question: "Where is order 1?", Runs: 5, Pass: 0.8},
		{Name: "nothing is deleted", Line: 9, Question: "Delete it.", Agent: "support", Runs: 2, Pass: 1},
		{Name: "a name that is longer than the table is wide, so it is shortened", Line: 15, Question: "Hello?", Runs: 1, Pass: 1},
	}}

	r := Report{Suite: s.Name, Configuration: configuration, StartedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for i, c := range s.Cases {
		if i >= len(passed) {
			break
		}
		one := newCaseReport(c)
		for n, p := range passed[i] {
			run := RunReport{RunID: "run_" + string(rune('a'+i)) + string(rune('a'+n)), Passed: p == '1', Seconds: 1.5, Answer: "An answer."}
			if i == 0 {
				run.Cost, run.Calls = &cost, []string{"crm_get_order"}
			}
			if i == 1 {
				run.Declined = []string{"the call of crm_delete"}
			}
			if !run.Passed {
				run.Failures = []Failure{{"contains", "the answer does not contain \"tomorrow\":\n\x1b[31m\"An answer.\""}}
			}
			if i == 2 {
				run.Judge = &Verdict{Pass: run.Passed, Reason: "It is not polite.", RunID: "run_judge", Cost: &cost}
			}
			one.Results = append(one.Results, run)
		}
		one.summarize()
		r.Cases = append(r.Cases, one)
	}

	r.summarize(12 * time.Second)
	return r
}

// checkGolden compares got with a file in testdata. Writing it again: go test ./internal/eval -update.
func checkGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%s\nwant %s:\n%s", got, path, want)
	}
}

func TestReportIsPrintedAsATable(t *testing.T) {
	r := newReport("the settings of this process", "11110", "10", "0")
	r.CompareWith(newReport("other.env", "00000", "11", "0"))
	var b bytes.Buffer
	var s Suite
	for _, c := range r.Cases {
		s.Cases = append(s.Cases, Case{Name: c.Name})
	}
	table := NewTable(&b, s)
	for _, c := range r.Cases {
		table.Add(c)
	}
	r.PrintSummary(&b)
	checkGolden(t, "table.golden", b.Bytes())
}

func TestReportIsWrittenAsJSON(t *testing.T) {
	r := newReport("the settings of this process", "11110", "10", "0")
	r.CompareWith(newReport("other.env", "00000", "11"))
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "report.golden.json", b.Bytes())
	var again Report
	if err := json.Unmarshal(b.Bytes(), &again); err != nil || again.PassedCases != 1 || len(again.Comparison) != 2 {
		t.Errorf("got %+v, %v, want the report with one case that passed and two that are compared", again, err)
	}
}

func TestReportIsWrittenAsJUnit(t *testing.T) {
	r := newReport("the settings of this process", "11110", "10", "0")
	var b bytes.Buffer
	if err := r.WriteJUnit(&b); err != nil {
		t.Fatal(err)
	}
	checkGolden(t, "junit.golden.xml", b.Bytes())
}

func TestCaseReportPassesAtItsRate(t *testing.T) {
	for n := 1; n <= 100; n++ {
		for k := 0; k <= n; k++ {
			c := CaseReport{Wanted: n, Pass: float64(k) / float64(n)}
			for i := range n {
				c.Results = append(c.Results, RunReport{Passed: i < k})
			}
			c.summarize()
			if !c.Passed {
				t.Errorf("%d of %d with the rate %v: Passed = false, want true", k, n, c.Pass)
			}
		}
	}

	c := CaseReport{Wanted: 5, Pass: 0.8, Results: []RunReport{{Passed: true}, {Passed: true}, {Passed: true}, {}, {}}}
	if c.summarize(); c.Passed || c.Rate != 0.6 {
		t.Errorf("3 of 5: got %v, %v, want a rate of 0.6, which is below 0.8", c.Passed, c.Rate)
	}
	c = CaseReport{Wanted: 5, Pass: 0.2, Results: []RunReport{{Passed: true}}}
	if c.summarize(); c.Passed {
		t.Error("1 run of 5 passed, and the others were not made: Passed = true, want false")
	}
}
