package demo

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// calculation is the result of calculate.
type calculation struct {
	Expression string  `json:"expression"`
	Result     float64 `json:"result" jsonschema:"rounded to 12 significant digits"`
	summary
}

// calculate fills in the value of an expression.
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

// expression is the rest of an arithmetic expression that is being computed. What its methods cannot
// compute is NaN. A parser of Go's standard library would add 0.3 MB to the binary.
type expression struct {
	rest  string
	depth int
}

// maxExpressionDepth bounds brackets within brackets, and signs.
const maxExpressionDepth = 100

// next skips white space, and then one of the characters in set, which it returns; 0 for none.
func (e *expression) next(set string) (c byte) {
	e.rest = strings.TrimSpace(e.rest)
	if e.rest != "" && strings.IndexByte(set, e.rest[0]) >= 0 {
		c, e.rest = e.rest[0], e.rest[1:]
	}
	return c
}

// parseSum reads products with + and - between them.
func (e *expression) parseSum() float64 {
	for x := e.parseProduct(); ; {
		switch e.next("+-") {
		case '+':
			x += e.parseProduct()
		case '-':
			x -= e.parseProduct()
		default:
			return x
		}
	}
}

// parseProduct reads operands with * and / between them.
func (e *expression) parseProduct() float64 {
	for x := e.parseOperand(); ; {
		switch e.next("*/") {
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

// parseOperand reads a number, or an expression in brackets, with its signs.
func (e *expression) parseOperand() float64 {
	e.depth++
	if e.depth > maxExpressionDepth {
		return math.NaN()
	}
	defer func() { e.depth-- }()
	switch e.next("+-(") {
	case '+':
		return e.parseOperand()
	case '-':
		return -e.parseOperand()
	case '(':
		if x := e.parseSum(); e.next(")") != 0 {
			return x
		}
		return math.NaN()
	}
	digits := len(e.rest) - len(strings.TrimLeft(e.rest, "0123456789."))
	x, err := strconv.ParseFloat(e.rest[:digits], 64)
	if err != nil {
		return math.NaN()
	}
	e.rest = e.rest[digits:]
	return x
}
