package demo

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// calculation holds the argument of the tool calculate, Expression, and the tool's result.
type calculation struct {
	Expression string  `json:"expression"`
	Result     float64 `json:"result" jsonschema:"rounded to 12 significant digits"`
	summary
}

// calculate sets the result and the summary of c. It returns an error if the expression cannot be parsed, divides by
// zero or has no finite value. The model gets the error as the result of the call.
func calculate(_ context.Context, _ *sdk.CallToolRequest, c *calculation) error {
	e := expression{rest: c.Expression}
	x := e.parseSum()
	if e.rest != "" || math.IsNaN(x) || math.IsInf(x, 0) {
		return errors.New("cannot compute the expression: it needs numbers, + - * / and brackets, and a divisor other than zero")
	}
	result, text := roundResult(x)
	c.Result, c.Summary = result, c.Expression+" = "+text
	return nil
}

// roundResult rounds x to 12 significant digits, so that 0.1+0.2 is 0.3. It returns the number and its text.
func roundResult(x float64) (float64, string) {
	text := strconv.FormatFloat(x, 'g', 12, 64)
	rounded, _ := strconv.ParseFloat(text, 64) // cannot fail for a finite x
	return rounded, text
}

// expression parses and evaluates an arithmetic expression. Its methods return NaN for anything that they cannot parse
// or compute, because every operation on NaN gives NaN again. go/parser would do too, but adds 0.3 MB to the binary.
type expression struct {
	rest  string // text that is not parsed yet
	depth int    // nesting depth of parseOperand
}

// maxExpressionDepth bounds the recursion of parseOperand, which recurses for nested brackets and repeated signs.
const maxExpressionDepth = 100

// accept skips white space. If the next character is in set, accept consumes and returns it. Otherwise it returns 0.
func (e *expression) accept(set string) (c byte) {
	e.rest = strings.TrimSpace(e.rest)
	if e.rest != "" && strings.IndexByte(set, e.rest[0]) >= 0 {
		c, e.rest = e.rest[0], e.rest[1:]
	}
	return c
}

// parseSum evaluates products joined by + and -.
func (e *expression) parseSum() float64 {
	x := e.parseProduct()
	for {
		switch e.accept("+-") {
		case '+':
			x += e.parseProduct()
		case '-':
			x -= e.parseProduct()
		default:
			return x
		}
	}
}

// parseProduct evaluates operands joined by * and /. A division by zero gives NaN.
func (e *expression) parseProduct() float64 {
	x := e.parseOperand()
	for {
		switch e.accept("*/") {
		case '*':
			x *= e.parseOperand()
		case '/':
			divisor := e.parseOperand()
			if divisor == 0 {
				return math.NaN()
			}
			x /= divisor
		default:
			return x
		}
	}
}

// parseOperand evaluates a number or a bracketed expression, with any number of signs before it.
func (e *expression) parseOperand() float64 {
	e.depth++
	if e.depth > maxExpressionDepth {
		return math.NaN()
	}
	defer func() { e.depth-- }()
	switch e.accept("+-(") {
	case '+':
		return e.parseOperand()
	case '-':
		return -e.parseOperand()
	case '(':
		x := e.parseSum()
		if e.accept(")") == 0 {
			return math.NaN()
		}
		return x
	}
	digits := len(e.rest) - len(strings.TrimLeft(e.rest, "0123456789."))
	x, err := strconv.ParseFloat(e.rest[:digits], 64)
	if err != nil {
		return math.NaN()
	}
	e.rest = e.rest[digits:]
	return x
}
