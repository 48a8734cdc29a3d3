package demo

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// calculation has the argument of calculate, Expression, and its result.
type calculation struct {
	Expression string  `json:"expression"`
	Result     float64 `json:"result" jsonschema:"rounded to 12 significant digits"`
	summary
}

// calculate sets the result and the summary of c. It returns an error, which the model gets as the result of
// the call, if the expression cannot be parsed, divides by zero, or has no finite value.
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

// roundResult returns x with 12 significant digits, as number and as text, so that 0.1+0.2 is 0.3.
func roundResult(x float64) (float64, string) {
	text := strconv.FormatFloat(x, 'g', 12, 64)
	rounded, _ := strconv.ParseFloat(text, 64) // cannot fail for a finite x
	return rounded, text
}

// expression parses and computes an arithmetic expression. Its methods return NaN for what they cannot parse or
// compute, and every operation on NaN is NaN. It does not use go/parser, which would add 0.3 MB to the binary.
type expression struct {
	rest  string // not parsed yet
	depth int    // calls of parseOperand within each other
}

// maxExpressionDepth bounds the recursion of parseOperand, which nested brackets and repeated signs cause.
const maxExpressionDepth = 100

// accept skips white space. If the next character is in set, accept skips and returns that too; otherwise it
// returns 0.
func (e *expression) accept(set string) (c byte) {
	e.rest = strings.TrimSpace(e.rest)
	if e.rest != "" && strings.IndexByte(set, e.rest[0]) >= 0 {
		c, e.rest = e.rest[0], e.rest[1:]
	}
	return c
}

// parseSum computes products with + and - between them.
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

// parseProduct computes operands with * and / between them. A division by zero is NaN.
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

// parseOperand computes a number or an expression in brackets, with any number of signs before it.
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
