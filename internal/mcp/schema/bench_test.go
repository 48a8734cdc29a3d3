package schema

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

const weatherSchema = `{"type":"object","properties":{"city":{"type":"string","description":"The city"},"days":{"type":"integer","minimum":1,"maximum":14},"units":{"enum":["celsius","fahrenheit"]}},"required":["city"],"additionalProperties":false}`

func BenchmarkCheck(b *testing.B) {
	var items []string
	for i := range 1000 {
		items = append(items, fmt.Sprintf(`{"id":%d,"name":"row %d","tags":["a","b"]}`, i, i))
	}
	rows := `{"type":"object","properties":{"rows":{"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string"},"tags":{"type":"array","items":{"type":"string"}}},"required":["id"]}}}}`
	for _, c := range []struct{ name, schema, value string }{
		{"fits", weatherSchema, `{"city":"Rome","days":3,"units":"celsius"}`},
		{"repaired", weatherSchema, `{"city":"Rome","days":"3","units":"celsius"}`},
		{"wrong", weatherSchema, `{"days":"x","units":"celcius","cty":"Rome"}`},
		{"union", fuzzSchemas[2], `{"k":"b","y":["x"],"z":null}`},
		{"1000 rows", rows, `{"rows":[` + strings.Join(items, ",") + `]}`},
	} {
		s, err := Compile(json.RawMessage(c.schema))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.value)))
			b.ReportAllocs()
			for b.Loop() {
				s.Check(json.RawMessage(c.value))
			}
		})
	}
}

// BenchmarkLibrary is what the library takes for the first of them, decoding included.
func BenchmarkLibrary(b *testing.B) {
	_, r := compileBoth(b, weatherSchema)
	b.ReportAllocs()
	for b.Loop() {
		var v map[string]any
		if err := json.Unmarshal([]byte(`{"city":"Rome","days":3,"units":"celsius"}`), &v); err != nil {
			b.Fatal(err)
		}
		if err := r.Validate(v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	hostile := strings.Repeat(`{"items":`, 15) + `{"enum":[` + strings.Repeat(`"abcdefgh",`, 5500) + `1]}` + strings.Repeat("}", 15)
	for _, c := range []struct{ name, schema string }{{"weather", weatherSchema}, {"union", fuzzSchemas[2]}, {"60 kB deep", hostile}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Compile(json.RawMessage(c.schema))
			}
		})
	}
}

// Bad ones cost no more than the bounds say: some 50 ms.
func BenchmarkHostile(b *testing.B) {
	deep := `{"properties":{"a":{"anyOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]}},"required":["b"]}`
	for _, c := range []struct{ name, schema, value string }{
		{"alternatives", deep, strings.Repeat(`{"a":`, 60) + "1" + strings.Repeat("}", 60)},
		{"pattern", `{"items":{"pattern":"^(a|aa|aaa|[a-z]{500})*$"}}`, `["` + strings.Repeat("a", 60_000) + `!"]`},
		{"enum", `{"items":{"enum":[` + strings.Repeat(`"celsius",`, 5000) + `1]}}`, `["` + strings.Repeat(`celcius","`, 6000) + `"]`},
		{"unique", `{"uniqueItems":true}`, `[` + strings.Repeat(`{"a":1},`, 1) + `{"b":1},{"c":1}` + strings.Repeat(`,{"d":[]}`, 1) + manyObjects(6000) + `]`},
	} {
		s, err := Compile(json.RawMessage(c.schema))
		if err != nil {
			b.Fatal(c.name, err)
		}
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Check(json.RawMessage(c.value))
			}
		})
	}
}

// manyObjects have one hash each of a few.
func manyObjects(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,{"x":%d}`, i)
	}
	return b.String()
}
