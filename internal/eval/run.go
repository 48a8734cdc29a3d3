package eval

import (
	"context"
	"slices"
	"sync"
	"time"

	"answerd/internal/client"
)

// Options says which answerd Run asks, and how.
type Options struct {
	URL      string                 // base URL of the answerd
	Token    func() (string, error) // the bearer token, read for each request; nil for none
	Parallel int                    // questions at a time, at least 1
	// Progress is called after each run, and Done after the last run of a case. The calls do not overlap. Both may be
	// nil.
	Progress func(done, total int)
	Done     func(CaseReport)
}

// evaluator asks the questions of a suite.
type evaluator struct{ client *client.Client }

// finishedRun is the result of one run of a case.
type finishedRun struct {
	caseIndex int // index in Suite.Cases
	report    RunReport
	err       error // set if ctx ended before the run did; report is then empty
}

// Run asks each question of suite as often as its case says, and returns the report. A run that fails is part of the
// report. If ctx ends, the report has the runs that had ended by then, and Interrupted is set.
//
// Run returns an error only if the service does not list its agents, or if the suite names an agent that the service
// does not have (*Error).
func Run(ctx context.Context, suite Suite, opts Options) (Report, error) {
	e := &evaluator{client.New(opts.URL, opts.Token, max(opts.Parallel, 1))}
	defer e.client.Close()
	report := Report{Suite: suite.Name, StartedAt: time.Now().UTC().Truncate(time.Millisecond)}
	if err := e.checkAgents(ctx, suite); err != nil {
		return Report{}, err
	}

	report.Cases, report.Interrupted = collectResults(suite, e.startRuns(ctx, suite, opts), opts)
	report.summarize(time.Since(report.StartedAt))
	return report, nil
}

// collectResults reads results until the channel is closed, and calls opts.Progress and opts.Done. It returns the
// reports of all cases that have a result. interrupted says that some runs did not end.
func collectResults(suite Suite, results <-chan finishedRun, opts Options) (cases []CaseReport, interrupted bool) {
	cases = make([]CaseReport, 0, len(suite.Cases)) // not nil, so that a report without results has a list too
	total := 0
	for _, testCase := range suite.Cases {
		cases = append(cases, newCaseReport(testCase))
		total += testCase.Runs
	}
	endCase := func(ended *CaseReport) {
		ended.summarize()
		if opts.Done != nil {
			opts.Done(*ended)
		}
	}

	done := 0
	for run := range results {
		if run.err != nil {
			continue
		}
		report := &cases[run.caseIndex]
		report.Results = append(report.Results, run.report)
		done++
		if opts.Progress != nil {
			opts.Progress(done, total)
		}
		if len(report.Results) == report.Wanted {
			endCase(report)
		}
	}

	for i := range cases {
		if n := len(cases[i].Results); n > 0 && n < cases[i].Wanted { // ctx ended between two runs of the case
			endCase(&cases[i])
		}
	}
	cases = slices.DeleteFunc(cases, func(c CaseReport) bool { return len(c.Results) == 0 })
	return cases, done < total
}

// startRuns runs the cases in goroutines, opts.Parallel runs at a time, and returns the channel of results. The caller
// must read the channel until it is closed, or the goroutines never end. If ctx ends, no further run begins, and the
// runs in progress end with the error of ctx.
func (e *evaluator) startRuns(ctx context.Context, suite Suite, opts Options) <-chan finishedRun {
	caseIndexes, results := make(chan int), make(chan finishedRun)
	var workers sync.WaitGroup
	for range max(opts.Parallel, 1) {
		workers.Go(func() {
			for i := range caseIndexes {
				report, err := e.run(ctx, suite, suite.Cases[i])
				results <- finishedRun{i, report, err}
			}
		})
	}
	go func() {
		// Deferred calls run in reverse order: the workers end before results is closed.
		defer close(results)
		defer workers.Wait()
		defer close(caseIndexes)
		sendCaseIndexes(ctx, suite.Cases, caseIndexes)
	}()
	return results
}

// sendCaseIndexes sends the index of each case Case.Runs times. It returns early if ctx ends.
func sendCaseIndexes(ctx context.Context, cases []Case, indexes chan<- int) {
	for i, testCase := range cases {
		for range testCase.Runs {
			select {
			case indexes <- i:
			case <-ctx.Done():
				return
			}
		}
	}
}

// run asks the question of a case once, and reports the expectations that the answer did not meet. It reports a failed
// run in the same way, and returns an error only if ctx ends. It asks the judge, which costs a model call, only if the
// answer met all other expectations. The judge's time does not count towards max_seconds.
func (e *evaluator) run(ctx context.Context, suite Suite, testCase Case) (RunReport, error) {
	limit := maxRun
	if testCase.Expect.MaxSeconds > 0 {
		limit = time.Duration(testCase.Expect.MaxSeconds * float64(time.Second))
	}
	metadata := map[string]string{"eval_suite": printable(suite.Name, 128), "eval_case": printable(testCase.Name, 128)}
	r, err := e.ask(ctx, question{
		Question: testCase.Question, Agent: testCase.Agent, Metadata: metadata, approve: testCase.Approve, limit: limit,
	})
	if err != nil {
		return RunReport{}, err
	}
	report := RunReport{
		RunID: r.runID, Answer: r.answer, Output: r.output, Calls: r.calls, Cost: r.cost, Declined: r.declined,
		Seconds: r.elapsed.Round(time.Millisecond).Seconds(),
	}
	if r.failure != nil {
		member := "run"
		if r.tooLong && testCase.Expect.MaxSeconds > 0 {
			member = "max_seconds"
		}
		report.Failures = []Failure{{member, r.failure.Error()}}
		return report, nil
	}
	report.Failures = testCase.Expect.check(r)
	if testCase.Expect.Rubric != "" && len(report.Failures) == 0 {
		if report.Judge, err = e.judge(ctx, *suite.Judge, testCase, r, metadata); err != nil {
			return RunReport{}, err
		}
		if !report.Judge.Pass {
			report.Failures = []Failure{{"judge", report.Judge.Reason}}
		}
	}
	report.Passed = len(report.Failures) == 0
	return report, nil
}
