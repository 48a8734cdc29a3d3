package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// convertArgs are the arguments; their bounds stand in the tool's schema.
type convertArgs struct {
	Value float64 `json:"value"`
	From  string  `json:"from"`
	To    string  `json:"to"`
}

// conversion is the structured result.
type conversion struct {
	Value   float64 `json:"value"`
	From    string  `json:"from" jsonschema:"symbol of the unit converted from"`
	To      string  `json:"to" jsonschema:"symbol of the unit converted to"`
	Kind    string  `json:"kind" jsonschema:"what the units measure"`
	Result  float64 `json:"result" jsonschema:"rounded to 10 significant digits; money to cents"`
	Summary string  `json:"summary" jsonschema:"the same in one sentence"`
}

// addConverter adds convert.
func addConverter(s *sdk.Server) {
	sdk.AddTool(s, &sdk.Tool{
		Name: "convert", Title: "Units and currencies", Annotations: readOnly(),
		Description: "Converts a value between units of length, mass, volume, temperature or data size, or between currencies. Currency rates are samples of " + ratesDate + " from a built-in table, not live.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{
			"value":{"type":"number","description":"The amount to convert","minimum":-1e15,"maximum":1e15},
			"from":{"type":"string","description":"Unit or ISO 4217 currency of the value, such as mi, kg, °F, GiB or EUR","minLength":1,"maxLength":32},
			"to":{"type":"string","description":"Unit or ISO 4217 currency to convert to, such as km, lb, °C, MB or USD","minLength":1,"maxLength":32}
		},"required":["value","from","to"],"additionalProperties":false}`),
	}, func(_ context.Context, _ *sdk.CallToolRequest, in convertArgs) (*sdk.CallToolResult, *conversion, error) {
		c, err := convert(in.Value, in.From, in.To)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot convert: %w", err)
		}
		return said(c.Summary), c, nil
	})
}

// convert computes value in another unit. A temperature below absolute zero is an
// error; a negative length is taken as a difference.
func convert(value float64, from, to string) (*conversion, error) {
	f, t, err := unitPair(from, to)
	if err != nil {
		return nil, err
	}
	base := value*f.factor + f.offset
	if f.kind == temperature && base < -273.15-1e-9 {
		return nil, fmt.Errorf("%s %s is below absolute zero", formatNumber(value), f.symbol)
	}
	x := (base - t.offset) / t.factor
	note := ""
	if f.kind == currency {
		x = math.Round(x*100) / 100
		note = " (at sample rates of " + ratesDate + ", not live)"
	}
	if x, err = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 10, 64), 64); err != nil {
		return nil, errNotFinite
	}
	return &conversion{value, f.symbol, t.symbol, f.kind, x,
		fmt.Sprintf("%s %s is %s %s%s.", formatNumber(value), f.symbol, formatNumber(x), t.symbol, note)}, nil
}
