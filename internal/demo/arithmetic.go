package demo

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bounds of an expression. The depth keeps a thousand brackets off the stack.
const (
	maxExpression = 200 // bytes
	maxNesting    = 40
)

// What can be wrong with an expression that is well formed.
var (
	errDivisionByZero = errors.New("division by zero has no result")
	errNotFinite      = errors.New("the result is too large or is not a real number")
)

// operatorSigns are the ways of writing an operator besides ASCII's.
var operatorSigns = strings.NewReplacer("×", "*", "·", "*", "÷", "/", "−", "-", "–", "-", "**", "^")

// evaluate computes an arithmetic expression: + - * / %, ^ for powers, brackets,
// signs and decimals, with the usual precedence; ^ binds tighter than a sign before
// it and to the right, so -2^2 is -4 and 2^3^2 is 512; % is the remainder. The
// result is rounded to 12 significant digits, so that 0.1+0.2 is 0.3.
func evaluate(expression string) (float64, error) {
	if len(expression) > maxExpression {
		return 0, fmt.Errorf("the expression is over %d characters", maxExpression)
	}
	p := &expressionParser{rest: operatorSigns.Replace(expression)}
	x, err := p.sum()
	if err != nil {
		return 0, err
	}
	if p.peek() != 0 {
		return 0, fmt.Errorf("the expression has something unexpected at %q", p.rest)
	}
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, errNotFinite
	}
	return strconv.ParseFloat(strconv.FormatFloat(x, 'g', 12, 64), 64)
}

// formatNumber writes x for people: without an exponent where that is readable.
func formatNumber(x float64) string {
	if a := math.Abs(x); a != 0 && (a >= 1e15 || a < 1e-6) {
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	return strconv.FormatFloat(x, 'f', -1, 64)
}

// expressionParser is a recursive descent over
//
//	sum     = product { ("+" | "-") product }
//	product = signed { ("*" | "/" | "%") signed }
//	signed  = { "+" | "-" } power
//	power   = atom [ "^" signed ]
//	atom    = number | "(" sum ")"
type expressionParser struct {
	rest  string
	depth int
}

// peek is the next character that is no space, or 0 at the end.
func (p *expressionParser) peek() byte {
	p.rest = strings.TrimLeft(p.rest, " \t")
	if p.rest == "" {
		return 0
	}
	return p.rest[0]
}

// accept takes the next character if it is one of set, and is 0 otherwise.
func (p *expressionParser) accept(set string) byte {
	c := p.peek()
	if c == 0 || strings.IndexByte(set, c) < 0 {
		return 0
	}
	p.rest = p.rest[1:]
	return c
}

// sum is the whole expression, or what stands in brackets. It goes on as long as a
// sign follows, so that 1-2-3 is (1-2)-3.
func (p *expressionParser) sum() (float64, error) {
	x, err := p.product()
	for err == nil {
		var y float64
		switch p.accept("+-") {
		case '+':
			y, err = p.product()
			x += y
		case '-':
			y, err = p.product()
			x -= y
		default:
			return x, nil
		}
	}
	return 0, err
}

// product goes on like sum. A zero divisor is an error of its own, because Go would
// give an infinity that a later step could turn into a number again.
func (p *expressionParser) product() (float64, error) {
	x, err := p.signed()
	for err == nil {
		op := p.accept("*/%")
		if op == 0 {
			return x, nil
		}
		var y float64
		if y, err = p.signed(); err != nil {
			break
		}
		switch {
		case op == '*':
			x *= y
		case y == 0:
			err = errDivisionByZero
		case op == '/':
			x /= y
		default:
			x = math.Mod(x, y)
		}
	}
	return 0, err
}

// signed takes any run of signs in a loop, not by recursion: 200 of them are no depth.
func (p *expressionParser) signed() (float64, error) {
	sign := 1.0
	for {
		switch p.accept("+-") {
		case '-':
			sign = -sign
		case 0:
			x, err := p.power()
			return sign * x, err
		}
	}
}

// power takes its exponent with a sign, and so on to the right: 2^-1, 2^3^2.
func (p *expressionParser) power() (float64, error) {
	x, err := p.atom()
	if err != nil || p.accept("^") == 0 {
		return x, err
	}
	if err := p.enter(); err != nil {
		return 0, err
	}
	defer p.leave()
	y, err := p.signed()
	if err == nil && x == 0 && y < 0 {
		err = errDivisionByZero
	}
	return math.Pow(x, y), err
}

// atom reads digits and points only. Go's other numbers, such as 0x10, 1e5, 1_000 and
// inf, are not what people mean by arithmetic.
func (p *expressionParser) atom() (float64, error) {
	if p.accept("(") != 0 {
		if err := p.enter(); err != nil {
			return 0, err
		}
		defer p.leave()
		x, err := p.sum()
		if err == nil && p.accept(")") == 0 {
			err = errors.New("the expression has a bracket that is never closed")
		}
		return x, err
	}
	p.peek()
	n := 0
	for n < len(p.rest) && (p.rest[n] >= '0' && p.rest[n] <= '9' || p.rest[n] == '.') {
		n++
	}
	x, err := strconv.ParseFloat(p.rest[:n], 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, errNotFinite
	}
	if err != nil {
		return 0, fmt.Errorf("the expression needs a number at %q", p.rest)
	}
	p.rest = p.rest[n:]
	return x, nil
}

// enter counts one level of nesting; each successful enter has its leave.
func (p *expressionParser) enter() error {
	if p.depth++; p.depth > maxNesting {
		return fmt.Errorf("the expression is nested over %d deep", maxNesting)
	}
	return nil
}

func (p *expressionParser) leave() { p.depth-- }
