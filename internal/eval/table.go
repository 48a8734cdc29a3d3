package eval

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxNameWidth = 48 // runes of a case's name in the table
	maxReasons   = 3  // reasons that the table shows for one case
)

// Table prints the results of cases one by one, as soon as each case has ended.
type Table struct {
	w     io.Writer
	width int // width of the column with the names, in runes
}

// NewTable returns a table for the cases of s and prints the table's head to w.
func NewTable(w io.Writer, s Suite) *Table {
	t := &Table{w: w, width: len("CASE")}
	for _, c := range s.Cases {
		t.width = min(max(t.width, utf8.RuneCountInString(c.Name)), maxNameWidth)
	}
	fmt.Fprintf(w, "%-6s %-*s %7s %5s  %-12s %8s %8s\n", "RESULT", t.width, "CASE", "PASSED", "RATE", "95 %", "COST", "SECONDS")
	return t
}

// Add prints the result of a case. Below it, it prints why the case did not pass and what was declined.
func (t *Table) Add(report CaseReport) {
	result := "pass"
	if !report.Passed {
		result = "FAIL"
	}
	name := []rune(printable(report.Name, 4*maxNameWidth))
	if len(name) > t.width {
		name = append(name[:t.width-1], '…')
	}
	fmt.Fprintf(t.w, "%-6s %-*s %7s %5.2f  [%.2f, %.2f] %8s %8.1f\n", result, t.width, string(name),
		fmt.Sprintf("%d/%d", report.PassedRuns, len(report.Results)), report.Rate, report.Interval[0], report.Interval[1], formatCost(report.Cost), report.Seconds)
	if n := len(report.Results); n < report.Wanted {
		fmt.Fprintf(t.w, "       interrupted after %d of %d runs\n", n, report.Wanted)
	}
	if !report.Passed {
		t.printReasons(report)
	}
	if declined := report.declinedQuestions(); len(declined) > 0 {
		fmt.Fprintf(t.w, "       declined: %s\n", printable(strings.Join(declined, ", "), 2*maxShown))
	}
}

// printReasons prints up to maxReasons different reasons why runs of the case failed, in the order of
// CaseReport.reasons.
func (t *Table) printReasons(c CaseReport) {
	reasons := c.reasons()
	for _, reason := range reasons[:min(len(reasons), maxReasons)] {
		fmt.Fprintf(t.w, "       %s\n", reason)
	}
	if len(reasons) > maxReasons {
		fmt.Fprintf(t.w, "       … and others, see -out\n")
	}
}

// reasons returns why runs of the case failed. Each reason appears once, with the number of runs, in the order of the
// first occurrence.
func (c *CaseReport) reasons() (lines []string) {
	counts := make(map[string]int)
	var order []string
	for _, r := range c.Results {
		for _, f := range r.Failures {
			reason := f.Expect + ": " + printable(f.Detail, 3*maxShown)
			if counts[reason] == 0 {
				order = append(order, reason)
			}
			counts[reason]++
		}
	}
	for _, reason := range order {
		if n := counts[reason]; n > 1 {
			reason += fmt.Sprintf(" (%d runs)", n)
		}
		lines = append(lines, reason)
	}
	return lines
}

// declinedQuestions returns the requests to a person that were declined in the case's runs, without duplicates.
func (c *CaseReport) declinedQuestions() (names []string) {
	for _, r := range c.Results {
		for _, name := range r.Declined {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// PrintSummary prints the totals of the report, and the comparison if the report has one.
func (r *Report) PrintSummary(w io.Writer) {
	state := ""
	if r.Interrupted {
		state = "interrupted: "
	}
	fmt.Fprintf(w, "\n%s%d of %d cases passed, %d runs, cost %s, %.1f s\n", state, r.PassedCases, len(r.Cases), r.Runs, formatCost(r.Cost), r.Seconds)
	if r.Against == nil {
		return
	}
	fmt.Fprintf(w, "\nThis configuration compared with %s:\n", printable(r.Against.Configuration, maxShown))
	regressed := r.printChanges(w, "regressed")
	improved := r.printChanges(w, "improved")
	fmt.Fprintf(w, "  the same: %d of %d cases\n", len(r.Comparison)-regressed-improved, len(r.Comparison))
}

// printChanges prints a line for each case whose Comparison.Change is change, and returns how many lines it printed.
func (r *Report) printChanges(w io.Writer, change string) (count int) {
	for _, c := range r.Comparison {
		if c.Change != change {
			continue
		}
		count++
		note := ""
		if !c.Significant {
			note = "  may be chance"
		}
		fmt.Fprintf(w, "  %-9s %s: %.2f → %.2f, difference %+.2f [%+.2f, %+.2f]%s\n", change, printable(c.Name, maxShown),
			c.Against, c.Rate, c.Difference, c.Interval[0], c.Interval[1], note)
	}
	return count
}

// formatCost formats a cost. nil means that the cost is unknown, and gives a dash.
func formatCost(cost *float64) string {
	if cost == nil {
		return "–"
	}
	return fmt.Sprintf("%.4f", *cost)
}
