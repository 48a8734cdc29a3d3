package eval

import (
	"cmp"
	"encoding/json"
	"io"
	"math"
	"time"
)

// Report is the result of evaluating a suite. -out writes it as JSON.
type Report struct {
	Suite         string    `json:"suite"`
	Configuration string    `json:"configuration"` // what answered: a URL, or the settings of this process
	StartedAt     time.Time `json:"started_at"`
	Seconds       float64   `json:"seconds"`
	Passed        bool      `json:"passed"`
	// Interrupted says that some runs did not end because ctx ended. Passed is then false.
	Interrupted bool         `json:"interrupted,omitempty"`
	PassedCases int          `json:"passed_cases"`
	Runs        int          `json:"runs"`
	Cost        *float64     `json:"cost,omitempty"` // of runs and judges with a known price; nil without any
	Cases       []CaseReport `json:"cases"`

	// Against is the report of the other configuration, and Comparison compares the cases of both. CompareWith sets them.
	Against    *Report      `json:"against,omitempty"`
	Comparison []Comparison `json:"comparison,omitempty"`
}

// CaseReport is the result of one case.
type CaseReport struct {
	Name       string      `json:"name"`
	Line       int         `json:"line"`
	Question   string      `json:"question"`
	Agent      string      `json:"agent,omitempty"`
	Passed     bool        `json:"passed"` // Rate is at least Pass
	Wanted     int         `json:"runs"`
	PassedRuns int         `json:"passed_runs"`
	Rate       float64     `json:"rate"`     // share of runs that met all expectations
	Interval   Interval    `json:"interval"` // of Rate
	Pass       float64     `json:"pass"`     // least Rate with which the case passes
	Cost       *float64    `json:"cost,omitempty"`
	Seconds    float64     `json:"seconds"` // mean of the runs
	Results    []RunReport `json:"results"`
}

// RunReport is the result of one run.
type RunReport struct {
	RunID    string          `json:"run_id,omitempty"`
	Passed   bool            `json:"passed"`
	Answer   string          `json:"answer,omitempty"`
	Output   json.RawMessage `json:"output,omitempty"`
	Calls    []string        `json:"calls,omitempty"`
	Cost     *float64        `json:"cost,omitempty"`
	Seconds  float64         `json:"seconds"`
	Declined []string        `json:"declined,omitempty"` // requests to a person that were declined
	Failures []Failure       `json:"failures,omitempty"`
	Judge    *Verdict        `json:"judge,omitempty"`
}

// Comparison compares the results of one case under two configurations.
type Comparison struct {
	Name       string   `json:"name"`
	Change     string   `json:"change"` // improved, regressed or same
	Rate       float64  `json:"rate"`
	Against    float64  `json:"against"`
	Difference float64  `json:"difference"` // Rate - Against
	Interval   Interval `json:"interval"`   // of Difference
	// Significant says that Interval does not contain 0, so the change is probably not chance.
	Significant bool `json:"significant"`
}

// newCaseReport returns the report of c, without results yet.
func newCaseReport(c Case) CaseReport {
	return CaseReport{Name: c.Name, Line: c.Line, Question: c.Question, Agent: c.Agent, Wanted: c.Runs, Pass: c.Pass}
}

// summarize sets the fields that follow from c.Results. Call it once, with at least one result. A case that has fewer
// results than it wants, because the evaluation was interrupted, does not pass.
func (c *CaseReport) summarize() {
	seconds := 0.0
	for _, r := range c.Results {
		if r.Passed {
			c.PassedRuns++
		}
		seconds += r.Seconds
		c.Cost = addCost(c.Cost, r.Cost)
		if r.Judge != nil {
			c.Cost = addCost(c.Cost, r.Judge.Cost)
		}
	}
	runs := float64(len(c.Results))
	c.Rate = float64(c.PassedRuns) / runs
	c.Interval = wilson(c.PassedRuns, len(c.Results)).rounded()
	c.Seconds = math.Round(seconds/runs*1000) / 1000
	const tolerance = 1e-9 // absorbs rounding errors, so that 4 of 5 runs reach a share of 0.8
	c.Passed = len(c.Results) == c.Wanted && float64(c.PassedRuns) >= c.Pass*runs-tolerance
}

// summarize sets the fields that follow from r.Cases and elapsed. Call it once, after r.Interrupted is set.
func (r *Report) summarize(elapsed time.Duration) {
	r.Seconds = elapsed.Round(time.Millisecond).Seconds()
	for _, c := range r.Cases {
		r.Runs += len(c.Results)
		if c.Passed {
			r.PassedCases++
		}
		r.Cost = addCost(r.Cost, c.Cost)
	}
	r.Passed = !r.Interrupted && r.PassedCases == len(r.Cases)
}

// addCost returns sum plus cost. An unknown cost is nil, and does not change the sum.
func addCost(sum, cost *float64) *float64 {
	if sum == nil || cost == nil {
		return cmp.Or(sum, cost)
	}
	return new(*sum + *cost)
}

// rounded returns the interval with both bounds rounded to four decimals.
func (i Interval) rounded() Interval { return Interval{roundShare(i[0]), roundShare(i[1])} }

// roundShare rounds a share of runs to four decimals.
func roundShare(share float64) float64 { return math.Round(share*1e4) / 1e4 }

// CompareWith sets r.Against to other, the report of another configuration, and r.Comparison to the differences between
// the two reports. It matches cases by name. It skips a case that only one report has because the other was
// interrupted.
func (r *Report) CompareWith(other Report) {
	r.Against, r.Comparison = &other, nil
	byName := make(map[string]CaseReport)
	for _, c := range other.Cases {
		byName[c.Name] = c
	}
	for _, c := range r.Cases {
		against, ok := byName[c.Name]
		if !ok {
			continue
		}
		compared := Comparison{Name: c.Name, Change: "same", Rate: c.Rate, Against: against.Rate, Difference: roundShare(c.Rate - against.Rate)}
		compared.Interval = difference(c.PassedRuns, len(c.Results), against.PassedRuns, len(against.Results)).rounded()
		switch {
		case compared.Difference > 0:
			compared.Change, compared.Significant = "improved", compared.Interval[0] > 0
		case compared.Difference < 0:
			compared.Change, compared.Significant = "regressed", compared.Interval[1] < 0
		}
		r.Comparison = append(r.Comparison, compared)
	}
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
