// Package eval asks the questions of a suite and compares the answers with what is expected of them
// (docs/tasks/evaluation-in-ci.md). It is a client of the native API.
//
//	suite, err := eval.Parse(data, eval.FileOptions{Dir: "suites", ReadFile: os.ReadFile})
//	report, err := eval.Run(ctx, suite, eval.Options{URL: "http://127.0.0.1:8080", Parallel: 4})
//	fmt.Println(report.Passed)
//
// A model's answers vary, so a case may be asked several times and pass with a share of its runs. Run asks
// at most Parallel questions at a time, and returns when the last of them has ended. If ctx ends, it cancels
// the runs and returns the report of those that were done.
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

	"answerd/api"
	"answerd/internal/mcp/schema"
)

// Bounds of the files that are read.
const (
	maxSuite  = 4 << 20   // bytes of a suite
	maxExport = 256 << 20 // bytes of an export
)

// Suite is a file of cases.
type Suite struct {
	Name  string
	Judge *Judge // nil if no case has a rubric
	Cases []Case
}

// Judge is the model that judges answers by the rubrics of the cases.
type Judge struct {
	Model string `json:"model"`
	Agent string `json:"agent"`
}

// Case is one question and what is expected of its answers.
type Case struct {
	Name     string
	Line     int // of the suite's file, from 1
	Question string
	Agent    string  // "" is the default agent
	Runs     int     // how often the question is asked
	Pass     float64 // share of the runs that must be as expected
	Approve  bool    // calls that need an approval are approved; otherwise they are declined
	Expect   Expect
}

// Expect says what must be true of a run. Its zero value expects nothing.
type Expect struct {
	Contains   texts                      `json:"contains"`
	Matches    texts                      `json:"matches"` // regular expressions
	JSON       map[string]json.RawMessage `json:"json"`    // values by their JSON pointers
	Schema     json.RawMessage            `json:"schema"`
	Calls      []string                   `json:"calls"`       // globs for the names of tools
	InOrder    bool                       `json:"in_order"`    // of Calls
	NeverCalls []string                   `json:"never_calls"` // globs
	MaxCost    *float64                   `json:"max_cost"`
	MaxSeconds float64                    `json:"max_seconds"`
	Rubric     string                     `json:"judge"`

	patterns []*regexp.Regexp          // of Matches
	values   map[string]*schema.Schema // of JSON: each is valid for that value alone
	schema   *schema.Schema            // of Schema
}

// texts is one text or a list of texts.
type texts []string

// UnmarshalJSON decodes both forms.
func (t *texts) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*t = texts{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(t))
}

// FileOptions say where a suite comes from.
type FileOptions struct {
	Name string // of the suite, if it names itself not
	Dir  string // that the names of exports are relative to
	// ReadFile reads an export. Without it, a suite cannot name one.
	ReadFile func(name string) ([]byte, error)
}

// Error says what is wrong with a suite.
type Error struct {
	Case   string // the case's name, or its number if it has none; "" if the mistake belongs to none
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

// suiteFile is a suite as its file has it. Members that are left out are nil.
type suiteFile struct {
	Name    string   `json:"name"`
	Runs    *int     `json:"runs"`
	Pass    *float64 `json:"pass"`
	Approve *bool    `json:"approve"`
	Judge   *Judge   `json:"judge"`
	Cases   []struct {
		Name     string   `json:"name"`
		Question string   `json:"question"`
		File     string   `json:"file"`
		Agent    string   `json:"agent"`
		Runs     *int     `json:"runs"`
		Pass     *float64 `json:"pass"`
		Approve  *bool    `json:"approve"`
		Expect   Expect   `json:"expect"`
	} `json:"cases"`
}

// Parse reads a suite. What is wrong with the suite, or with an export that it names, is an *Error. The first mistake
// counts.
func Parse(data []byte, opts FileOptions) (Suite, error) {
	doc, err := readYAML(data)
	if err != nil {
		return Suite{}, err
	}
	s, err := schema.Compile(api.EvalSchema)
	if err != nil {
		return Suite{}, fmt.Errorf("compile the schema of a suite: %w", err)
	}
	if problems := s.Validate(doc.value); len(problems) > 0 {
		problem := problems[0]
		// A misspelled member is unknown, and the member that was meant is missing. Report the one that the file has.
		if i := slices.IndexFunc(problems, func(p schema.Problem) bool { return doc.lines[p.Pointer] > 0 }); i >= 0 {
			problem = problems[i]
		}
		pointer, detail := problem.Pointer, problem.Detail
		if doc.lines[pointer+"/question"] > 0 && doc.lines[pointer+"/file"] > 0 {
			detail = "question and file are both given" // in place of the text for oneOf
		}
		return Suite{}, doc.errorAt(pointer, detail)
	}
	var file suiteFile
	if err := json.Unmarshal(doc.value, &file); err != nil {
		return Suite{}, &Error{Detail: "cannot be read: " + err.Error()}
	}
	return newSuite(file, doc, opts)
}

// newSuite checks what the schema cannot express, and fills in the defaults: a case's own value comes first, then
// the suite's, then 1 run, a share of 1 and no approvals.
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
			Runs:     *cmp.Or(given.Runs, file.Runs, new(1)),
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

// compile prepares the checks of an answer: it sets patterns, values and schema, and checks the globs. An error comes
// with the JSON pointer of the member, below expect and without the first slash.
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
		if e.values[pointer], err = schema.Compile(slices.Concat([]byte(`{"const":`), value, []byte("}"))); err != nil {
			return "json/" + pointerEscapes.Replace(pointer), fmt.Errorf("the value cannot be compared: %w", err)
		}
	}
	if e.Schema != nil {
		if e.schema, err = schema.Compile(e.Schema); err != nil {
			return "schema", fmt.Errorf("the schema cannot be used: %w", err)
		}
		if wrong := schema.CheckTypes(e.Schema); wrong != nil { // it would restrict nothing, and every answer would pass
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

// readExport takes the question and the agent from an export of a run. It does not use package export: a suite
// needs two members only, and may name exports of other versions. An agent of the case comes first.
func (c *Case) readExport(name string, o FileOptions) error {
	if o.ReadFile == nil {
		return errors.New("the file cannot be read here")
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(o.Dir, name)
	}
	data, err := o.ReadFile(name)
	if err != nil {
		return fmt.Errorf("the file cannot be read: %w", err)
	}
	if len(data) > maxExport || !utf8.Valid(data) {
		return fmt.Errorf("the file is not JSON of at most %d bytes", maxExport)
	}
	var export struct {
		Run struct {
			Agent string `json:"agent"`
		} `json:"run"`
		Request struct {
			Question string `json:"question"`
		} `json:"request"`
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
