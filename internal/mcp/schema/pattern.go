package schema

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

const (
	maxPatternStates = 20_000  // states of a schema's patterns in total, about 40 bytes each
	workPerStep      = 16      // product of states and bytes of text that counts as one validator step
	maxPatternLength = 4 << 10 // bytes of one regular expression
)

// compilePattern compiles a regular expression and stores it in c.patterns. JSON Schema uses the expressions of
// ECMA-262 (draft 2020-12 core, 6.4). Package regexp supports nearly all of them and matches in linear time, so a
// pattern cannot block the process. For an unsupported expression, compilePattern stores nil and the MCP server has to
// check the value. It returns an error if the expression is too long or needs too many states, as (a{1000}){1000} does.
func (c *compiler) compilePattern(expression string) error {
	if _, known := c.patterns[expression]; known {
		return nil
	}
	c.patterns[expression] = nil
	if len(expression) > maxPatternLength {
		return errors.New("a pattern in it is too long")
	}
	tree, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil
	}
	states := countStates(tree)
	c.patternStates += states
	if c.patternStates > maxPatternStates {
		return fmt.Errorf("its patterns have more than %d states", maxPatternStates)
	}
	if compiled, err := regexp.Compile(expression); err == nil {
		c.patterns[expression] = &pattern{Regexp: compiled, states: states}
	}
	return nil
}

// countStates estimates the number of states of the compiled expression x, with its repetitions expanded. It is called
// before compiling, because even a short expression can take much memory. The result is at most maxPatternStates+1, so
// that nested repetitions cannot overflow it.
func countStates(x *syntax.Regexp) int {
	states := 1 + len(x.Rune)
	for _, sub := range x.Sub {
		states += countStates(sub)
	}
	if x.Op == syntax.OpRepeat {
		states *= max(1, x.Min, x.Max)
	}
	return min(states, maxPatternStates+1)
}
