// Package eval asks the questions of a suite and compares the answers with what is expected of them
// (docs/tasks/evaluation-in-ci.md). It is a client of the native API.
//
//	suite, err := eval.Parse(data, eval.FileOptions{Dir: "suites", ReadFile: os.ReadFile})
//	report, err := eval.Run(ctx, suite, eval.Options{URL: "http://127.0.0.1:8080", Parallel: 4})
//	fmt.Println(report.Passed)
//
// A model's answers vary, so a suite may ask a question several times and let the case pass if a share of its runs
// does. Run asks at most Parallel questions at a time, and returns when the last run has ended. If ctx ends, it cancels
// the runs in progress and returns the report of those that had ended.
package eval

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"answerd/api"
	"answerd/internal/mcp/schema"
)

// Limits for the files that Parse reads.
const (
	maxSuite  = 4 << 20   // bytes of a suite
	maxExport = 256 << 20 // bytes of an export
)

// Suite is the content of a suite file.
type Suite struct {
	Name  string
	Judge *Judge // nil if no case has a rubric
	Cases []Case
}

// Judge is the model that judges answers by the rubrics of cases.
type Judge struct {
	Model string `json:"model"`
	Agent string `json:"agent"`
}

// Case is a question with the expectations for its answers.
type Case struct {
	Name     string
	Line     int // line in the suite's file, from 1
	Question string
	Agent    string  // "" is the default agent
	Runs     int     // how often the question is asked
	Pass     float64 // least share of runs that must meet all expectations
	Approve  bool    // approve calls that need an approval; false declines them
	Expect   Expect
}

// Expect holds the expectations for a run. The zero value expects nothing.
type Expect struct {
	Contains   texts                      `json:"contains"`
	Matches    texts                      `json:"matches"` // regular expressions
	JSON       map[string]json.RawMessage `json:"json"`    // expected values by JSON pointer
	Schema     json.RawMessage            `json:"schema"`
	Calls      []string                   `json:"calls"`       // globs that match tool names
	InOrder    bool                       `json:"in_order"`    // Calls must occur in their order
	NeverCalls []string                   `json:"never_calls"` // globs
	MaxCost    *float64                   `json:"max_cost"`
	MaxSeconds float64                    `json:"max_seconds"`
	Rubric     string                     `json:"judge"`

	patterns []*regexp.Regexp          // compiled Matches
	values   map[string]*schema.Schema // by the pointers of JSON; each accepts only the expected value
	schema   *schema.Schema            // compiled Schema
}

// texts decodes from one text or from a list of texts.
type texts []string

// UnmarshalJSON implements json.Unmarshaler for both forms.
func (t *texts) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*t = texts{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(t))
}

// FileOptions says where a suite and the exports that it names come from.
type FileOptions struct {
	Name string // name of a suite that does not have its own
	Dir  string // directory for relative paths of exports
	// ReadFile reads an export. If it is nil, an export in a suite is an error.
	ReadFile func(name string) ([]byte, error)
}

// Error describes a mistake in a suite.
type Error struct {
	Case   string // the case's name, or its number if it has none; "" if the mistake is outside of cases
	Line   int    // from 1; 0 if unknown
	Detail string
}

// Error returns the case, the line and the detail.
func (e *Error) Error() string {
	var where []string
	if e.Case != "" {
		where = append(where, "case "+e.Case)
	}
	if e.Line > 0 {
		where = append(where, fmt.Sprintf("line %d", e.Line))
	}
	if where == nil {
		return e.Detail
	}
	return strings.Join(where, ", ") + ": " + e.Detail
}

// suiteFile is a suite as its file encodes it. A pointer is nil if the file does not have the member.
type suiteFile struct {
	Name    string   `json:"name"`
	Runs    *float64 `json:"runs"` // an integer, which may be written as 5.0
	Pass    *float64 `json:"pass"`
	Approve *bool    `json:"approve"`
	Judge   *Judge   `json:"judge"`
	Cases   []struct {
		Name     string   `json:"name"`
		Question string   `json:"question"`
		File     string   `json:"file"`
		Agent    string   `json:"agent"`
		Runs     *float64 `json:"runs"`
		Pass     *float64 `json:"pass"`
		Approve  *bool    `json:"approve"`
		Expect   Expect   `json:"expect"`
	} `json:"cases"`
}

// Parse parses a suite and reads the exports that it names. A mistake in the suite or in an export is an *Error. Parse
// reports only one mistake.
func Parse(data []byte, opts FileOptions) (Suite, error) {
	doc, err := readYAML(data)
	if err != nil {
		return Suite{}, err
	}
	if err := validateSuite(doc); err != nil {
		return Suite{}, err
	}
	var file suiteFile
	if err := json.Unmarshal(doc.value, &file); err != nil {
		return Suite{}, &Error{Detail: "cannot be read: " + err.Error()}
	}
	return newSuite(file, doc, opts)
}

// validateSuite validates doc against the schema of suites. It returns an *Error for the first mistake.
func validateSuite(doc *document) error {
	s, err := schema.Compile(api.EvalSchema)
	if err != nil {
		return fmt.Errorf("compile the schema of a suite: %w", err)
	}
	problems := s.Validate(doc.value)
	if len(problems) == 0 {
		return nil
	}
	problem := problems[0]
	// A misspelled member is unknown, and the member that was meant is missing. Report the one that the file has.
	if i := slices.IndexFunc(problems, func(p schema.Problem) bool { return doc.lines[p.Pointer] > 0 }); i >= 0 {
		problem = problems[i]
	}
	if doc.lines[problem.Pointer+"/question"] > 0 && doc.lines[problem.Pointer+"/file"] > 0 {
		problem.Detail = "question and file are both given" // clearer than the message for oneOf
	}
	return doc.errorAt(problem.Pointer, problem.Detail)
}

// newSuite checks what the schema cannot express, and fills in the defaults. A case's own value has precedence over the
// suite's. Without either, a case has 1 run, must pass in all runs, and approves nothing.
func newSuite(file suiteFile, doc *document, opts FileOptions) (Suite, error) {
	suite := Suite{Name: cmp.Or(file.Name, opts.Name), Judge: file.Judge}
	seen := make(map[string]bool)
	for i, given := range file.Cases {
		pointer := fmt.Sprintf("/cases/%d", i)
		testCase := Case{
			Name:     given.Name,
			Line:     doc.lines[pointer],
			Question: given.Question,
			Agent:    given.Agent,
			Expect:   given.Expect,
			Runs:     int(*cmp.Or(given.Runs, file.Runs, new(1.0))),
			Pass:     *cmp.Or(given.Pass, file.Pass, new(1.0)),
			Approve:  *cmp.Or(given.Approve, file.Approve, new(false)),
		}
		if seen[testCase.Name] {
			return Suite{}, doc.errorAt(pointer+"/name", "the name is given to two cases")
		}
		seen[testCase.Name] = true
		if given.File != "" {
			if err := testCase.readExport(given.File, opts); err != nil {
				return Suite{}, doc.errorAt(pointer+"/file", err.Error())
			}
		}
		if strings.TrimSpace(testCase.Question) == "" {
			return Suite{}, doc.errorAt(pointer+"/question", "the question is blank")
		}
		if testCase.Expect.Rubric != "" && suite.Judge == nil {
			return Suite{}, doc.errorAt(pointer+"/expect/judge", "a rubric needs the suite's judge: {model: …}")
		}
		if member, err := testCase.Expect.compile(); err != nil {
			return Suite{}, doc.errorAt(pointer+"/expect/"+member, err.Error())
		}
		suite.Cases = append(suite.Cases, testCase)
	}
	return suite, nil
}

// compile prepares e for check: it sets patterns, values and schema, and validates the globs. With an error it returns
// the JSON pointer of the wrong member, relative to expect and without the first slash.
func (e *Expect) compile() (member string, err error) {
	for i, text := range e.Matches {
		pattern, err := regexp.Compile(text)
		if err != nil {
			return fmt.Sprintf("matches/%d", i), fmt.Errorf("is not a regular expression: %w", err)
		}
		e.patterns = append(e.patterns, pattern)
	}
	e.values = make(map[string]*schema.Schema)
	for pointer, value := range e.JSON {
		onlyValue := slices.Concat([]byte(`{"const":`), value, []byte("}"))
		if e.values[pointer], err = schema.Compile(onlyValue); err != nil {
			return string(jsontext.Pointer("json").AppendToken(pointer)), fmt.Errorf("the value cannot be compared: %w", err)
		}
	}
	if e.Schema != nil {
		if e.schema, err = schema.Compile(e.Schema); err != nil {
			return "schema", fmt.Errorf("the schema cannot be used: %w", err)
		}
		if wrong := schema.CheckTypes(e.Schema); wrong != nil { // such a schema restricts nothing, so every answer would pass
			return "schema" + wrong.Pointer, fmt.Errorf("the schema cannot be used: it %s", wrong.Detail)
		}
	}
	for member, globs := range map[string][]string{"calls": e.Calls, "never_calls": e.NeverCalls} {
		for i, glob := range globs {
			if _, err := path.Match(glob, ""); err != nil {
				return fmt.Sprintf("%s/%d", member, i), errors.New("is not a glob")
			}
		}
	}
	return "", nil
}

// readExport takes the question, and the agent unless c.Agent is set, from the export of a run. It does not use package
// export, because it needs only two members and accepts exports of any version.
func (c *Case) readExport(name string, opts FileOptions) error {
	if opts.ReadFile == nil {
		return errors.New("the file cannot be read here")
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(opts.Dir, name)
	}
	data, err := opts.ReadFile(name)
	if err != nil {
		return fmt.Errorf("the file cannot be read: %w", err)
	}
	if len(data) > maxExport || !utf8.Valid(data) {
		return fmt.Errorf("the file is not JSON of at most %d bytes", maxExport)
	}
	var export struct {
		Run     struct{ Agent string }
		Request struct{ Question string }
	}
	if err := json.Unmarshal(data, &export); err != nil {
		return fmt.Errorf("the file is not an export: %w", err)
	}
	c.Question = export.Request.Question
	if c.Question == "" {
		return errors.New("the file is not an export: it has no question")
	}
	c.Agent = cmp.Or(c.Agent, export.Run.Agent)
	return nil
}
