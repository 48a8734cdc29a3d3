package eval

import (
	"context"
	"slices"
	"sync"
	"time"

	"answerd/internal/client"
)

// Options say where Run asks, and how.
type Options struct {
	URL      string                 // base URL of the answerd
	Token    func() (string, error) // the bearer token, read for each request; nil for none
	Parallel int                    // questions at a time, at least 1
	// Progress is called when a run has ended, and Done when the last run of a case has. Calls do not
	// overlap. Both may be nil.
	Progress func(done, total int)
	Done     func(CaseReport)
}

// evaluator asks the questions of a suite.
type evaluator struct{ client *client.Client }

// job is one run of a case. Runs of a case are jobs of their own, so that they run at the same time too.
type job struct{ number int } // of the case

// finished is a job with its result.
type finished struct {
	job
	result RunReport
	err    error // ctx has ended
}

// Run asks the questions of a suite. If ctx ends, the report is of the runs that were done, and its
// Interrupted is true. An error means that no question could be asked; it is an *Error if the suite names
// an agent that the service does not have.
func Run(ctx context.Context, suite Suite, opts Options) (Report, error) {
	e := &evaluator{client.New(opts.URL, opts.Token, max(opts.Parallel, 1))}
	defer e.client.Close()
	report := Report{Suite: suite.Name, StartedAt: time.Now().UTC().Truncate(time.Millisecond)}
	if err := e.checkAgents(ctx, suite); err != nil {
		return Report{}, err
	}

	results, total := e.startRuns(ctx, suite, opts), 0
	cases := make([]CaseReport, len(suite.Cases))
	for i, one := range suite.Cases {
		cases[i] = newCaseReport(one)
		total += one.Runs
	}

	done := 0
	for f := range results {
		if f.err != nil {
			continue
		}
		testCase := &cases[f.number]
		testCase.Results = append(testCase.Results, f.result)
		done++
		if opts.Progress != nil {
			opts.Progress(done, total)
		}
		if len(testCase.Results) == testCase.Wanted {
			testCase.summarize()
			if opts.Done != nil {
				opts.Done(*testCase)
			}
		}
	}

	report.Interrupted = done < total
	for i := range cases {
		if n := len(cases[i].Results); n > 0 && n < cases[i].Wanted {
			cases[i].summarize()
			if opts.Done != nil {
				opts.Done(cases[i])
			}
		}
	}

	report.Cases = slices.DeleteFunc(cases, func(one CaseReport) bool { return len(one.Results) == 0 })
	report.summarize(time.Since(report.StartedAt))
	return report, nil
}

// startRuns starts the goroutines that ask, and returns their results. The channel is closed when all of
// them have ended. The caller must read it to its end, or the goroutines never end. If ctx ends, the jobs that
// have begun end with its error, and the others are not run.
func (e *evaluator) startRuns(ctx context.Context, suite Suite, o Options) <-chan finished {
	jobs, results := make(chan job), make(chan finished)
	var workers sync.WaitGroup
	for range max(o.Parallel, 1) {
		workers.Go(func() {
			for j := range jobs {
				result, err := e.run(ctx, suite, suite.Cases[j.number])
				results <- finished{j, result, err}
			}
		})
	}
	go func() {
		defer close(results)
		defer workers.Wait()
		defer close(jobs)
		for i, one := range suite.Cases {
			for range one.Runs {
				select {
				case jobs <- job{i}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return results
}

// run asks the question of a case once and compares the answer with what is expected. A run that failed is a
// result like any other; an error means that ctx has ended. The judge is asked only about answers that met all
// other expectations, which saves its model call. Its time does not count towards max_seconds.
func (e *evaluator) run(ctx context.Context, suite Suite, testCase Case) (RunReport, error) {
	limit := maxRun
	if testCase.Expect.MaxSeconds > 0 {
		limit = time.Duration(testCase.Expect.MaxSeconds * float64(time.Second))
	}
	metadata := map[string]string{"eval_suite": printable(suite.Name, 128), "eval_case": printable(testCase.Name, 128)}
	r, err := e.ask(ctx, question{Question: testCase.Question, Agent: testCase.Agent, Metadata: metadata}, testCase.Approve, limit)
	if err != nil {
		return RunReport{}, err
	}
	report := RunReport{
		RunID: r.runID, Answer: r.answer, Output: r.output, Calls: r.calls, Cost: r.cost, Declined: r.declined,
		Seconds: r.elapsed.Round(time.Millisecond).Seconds(),
	}
	if r.failure != nil {
		report.Failures = []Failure{{"run", r.failure.Error()}}
		if r.tooLong && testCase.Expect.MaxSeconds > 0 {
			report.Failures[0].Expect = "max_seconds"
		}
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
