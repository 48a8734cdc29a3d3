package eval

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// These are the elements of a JUnit report that CI systems read. The format has no specification. Times are in seconds
// with three decimals. Timestamps are in UTC, without a zone.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string      `xml:"name,attr"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Time      string      `xml:"time,attr"`
		Timestamp string      `xml:"timestamp,attr"`
		Cases     []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitFailure `xml:"failure"`
		Out     string        `xml:"system-out"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the report as JUnit XML, with one test for each case. The time of a test is the sum of its runs.
// Runs are not tests of their own, because a case may pass although some runs fail. The output of a test lists its runs
// by id.
func (r *Report) WriteJUnit(w io.Writer) error {
	suite := junitSuite{
		Name: printable(r.Suite, maxShown), Tests: len(r.Cases), Failures: len(r.Cases) - r.PassedCases,
		Time: fmt.Sprintf("%.3f", r.Seconds), Timestamp: r.StartedAt.UTC().Format("2006-01-02T15:04:05"),
	}

	changes := make(map[string]Comparison)
	for _, c := range r.Comparison {
		changes[c.Name] = c
	}

	for _, report := range r.Cases {
		testCase := newJUnitCase(suite.Name, report)
		if change, ok := changes[report.Name]; ok {
			testCase.Out += fmt.Sprintf("\n%s: %.2f → %.2f", change.Change, change.Against, change.Rate)
		}
		for _, run := range report.Results {
			if run.RunID != "" {
				testCase.Out += "\nrun " + printable(run.RunID, maxShown)
			}
		}
		suite.Cases = append(suite.Cases, testCase)
	}

	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	suites := junitSuites{Name: suite.Name, Tests: suite.Tests, Failures: suite.Failures, Time: suite.Time, Suites: []junitSuite{suite}}
	if err := enc.Encode(suites); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// newJUnitCase returns the test for one case. Its output is one line that says how many runs passed.
func newJUnitCase(suite string, report CaseReport) junitCase {
	summary := fmt.Sprintf("%d of %d runs passed, rate %.2f [%.2f, %.2f], at least %.2f",
		report.PassedRuns, len(report.Results), report.Rate, report.Interval[0], report.Interval[1], report.Pass)
	testCase := junitCase{
		Class: suite,
		Name:  printable(report.Name, 1024),
		Time:  fmt.Sprintf("%.3f", report.Seconds*float64(len(report.Results))),
		Out:   summary,
	}
	if !report.Passed {
		testCase.Failure = &junitFailure{Message: summary, Type: "expectation", Text: "\n" + strings.Join(report.reasons(), "\n") + "\n"}
	}
	return testCase
}
