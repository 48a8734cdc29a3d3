package schema

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

const (
	maxPattern     = 20_000 // states of all patterns of a schema, some 40 bytes each
	bytesPerStep   = 16     // states times bytes of text that count as one step
	maxPatternText = 4 << 10
)

// compilePattern compiles a regular expression. Schemas use those of ECMA-262, of which
// package regexp supports nearly all, in time that is linear in the text. Unsupported ones
// are not checked here; the server checks them. compilePattern returns an error for one that
// grows too large, such as (a{1000}){1000}.
func (c *compiler) compilePattern(x string) error {
	if _, known := c.patterns[x]; known {
		return nil
	}
	c.patterns[x] = nil
	if len(x) > maxPatternText {
		return errors.New("a pattern in it is too long")
	}
	tree, err := syntax.Parse(x, syntax.Perl)
	if err != nil {
		return nil
	}
	size := countStates(tree)
	if c.size += size; c.size > maxPattern {
		return fmt.Errorf("its patterns have more than %d states", maxPattern)
	}
	if compiled, err := regexp.Compile(x); err == nil {
		c.patterns[x] = &pattern{compiled, size}
	}
	return nil
}

// countStates returns approximately how many states an expression has after its repetitions
// are expanded, as compiling does. It stops counting above the bound.
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

// matches reports whether s matches p, and spends the steps for that.
func (w *validator) matches(p *pattern, s string) bool {
	w.spend(1 + len(s)*p.size/bytesPerStep)
	return w.over || p.MatchString(s)
}
