package schema

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

const (
	maxPattern     = 20_000 // states of all patterns of a schema, some 40 bytes each
	bytesPerStep   = 16     // states times bytes of text that are one step of a walk
	maxPatternText = 4 << 10
)

// pattern compiles a regular expression. Schemas have those of ECMA-262, of which Go
// understands nearly all, in time that is linear in the text; what it doesn't is not
// checked, and left to the server. The error is about one that grows too large:
// (a{1000}){1000} is short.
func (c *compiler) pattern(x string) error {
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
	size := states(tree)
	if c.size += size; c.size > maxPattern {
		return fmt.Errorf("its patterns have more than %d states", maxPattern)
	}
	if compiled, err := regexp.Compile(x); err == nil {
		c.patterns[x] = &pattern{compiled, size}
	}
	return nil
}

// states is nearly how many states an expression has once its repetitions are written
// out, which is what compiling does. It stops counting above the bound.
func states(x *syntax.Regexp) int {
	n := 1 + len(x.Rune)
	for _, sub := range x.Sub {
		n += states(sub)
	}
	if x.Op == syntax.OpRepeat {
		n *= max(1, x.Min, x.Max)
	}
	return min(n, maxPattern+1)
}

// matches charges for what it takes.
func (w *walk) matches(p *pattern, s string) bool {
	w.spend(1 + len(s)*p.size/bytesPerStep)
	return w.over || p.MatchString(s)
}
