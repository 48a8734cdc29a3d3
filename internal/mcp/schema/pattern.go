package schema

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

const (
	maxPattern     = 20_000  // states of all patterns of a schema, about 40 bytes each
	bytesPerStep   = 16      // states times bytes of text that count as one step of the validator
	maxPatternText = 4 << 10 // bytes of one expression
)

// compilePattern compiles a regular expression into c.patterns. Schemas have expressions of ECMA-262 (draft 2020-12
// core, 6.4). Package regexp supports nearly all of them, and matches in linear time, so that a pattern cannot block.
// For an unsupported expression, c.patterns has nil: the server has to check it. The error means that the expression is
// too long, or needs too many states, as (a{1000}){1000} does.
func (c *compiler) compilePattern(expression string) error {
	if _, known := c.patterns[expression]; known {
		return nil
	}
	c.patterns[expression] = nil
	if len(expression) > maxPatternText {
		return errors.New("a pattern in it is too long")
	}
	tree, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil
	}
	size := countStates(tree)
	c.patternStates += size
	if c.patternStates > maxPattern {
		return fmt.Errorf("its patterns have more than %d states", maxPattern)
	}
	if compiled, err := regexp.Compile(expression); err == nil {
		c.patterns[expression] = &pattern{compiled, size}
	}
	return nil
}

// countStates returns about the number of states that an expression has once it is compiled, with its repetitions
// expanded. The count is made before compiling, because a short expression can take much memory. It ends at
// maxPattern+1, so that nested repetitions do not overflow it.
func countStates(x *syntax.Regexp) int {
	n := 1 + len(x.Rune)
	for _, sub := range x.Sub {
		n += countStates(sub)
	}
	if x.Op == syntax.OpRepeat {
		n *= max(1, x.Min, x.Max)
	}
	return min(n, maxPattern+1)
}
