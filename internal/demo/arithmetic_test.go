package demo

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestArithmetic(t *testing.T) {
	for expression, want := range map[string]float64{
		"1+2*3": 7, "(1+2)*3": 9, "-2^2": -4, "2^3^2": 512, "2^-1": 0.5, "--3": 3, "+4": 4, "10%4": 2, "-7 % 3": -1, "7/2": 3.5,
		"0.1+0.2": 0.3, ".5*4": 2, " 12.5 * 8 ": 100, "8÷2×3−1": 11, "2**3": 8, "1-2-3": -4, "100/10/2": 5, "((((1))))": 1, "2*-3": -6,
	} {
		if got, err := evaluate(expression); err != nil || got != want {
			t.Errorf("%s = %v, %v; want %v", expression, got, err, want)
		}
	}
}

func TestBadArithmetic(t *testing.T) {
	for expression, want := range map[string]error{
		"1/0": errDivisionByZero, "5%0": errDivisionByZero, "0^-1": errDivisionByZero, "1/(2-2)": errDivisionByZero,
		"10^999": errNotFinite, "(-8)^(1/3)": errNotFinite, "9^9^9": errNotFinite, "1" + strings.Repeat("0", 199): nil,
		"": nil, "1+": nil, "(1": nil, "1)": nil, "1 2": nil, "a": nil, "1..2": nil, "1e5": nil, "*2": nil, "0x10": nil,
		strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100): nil, strings.Repeat("2^", 60) + "2": nil, strings.Repeat("1", 201): nil,
	} {
		x, err := evaluate(expression)
		if expression[:min(1, len(expression))] == "1" && len(expression) == 200 {
			if err != nil {
				t.Errorf("10^199 is an error: %v", err)
			}
			continue
		}
		if err == nil || (want != nil && !errors.Is(err, want)) {
			t.Errorf("%q = %v, %v; want error %v", expression, x, err, want)
		}
	}
}

// An evaluator of what a model wrote must end, with a finite number or an error, and
// must not change its mind about the number that it printed.
func FuzzEvaluate(f *testing.F) {
	for _, s := range []string{"1+2*3", "(1", "2^3^2", "-(-1)", "1/0", "10%3", "9^9^9", "...", "((((((1))))))", "8÷2×3", "\x00", "2^-1^-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		x, err := evaluate(s)
		if err != nil {
			return
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			t.Fatalf("%q = %v", s, x)
		}
		if again, err := evaluate("(" + s + ")"); len(s) < maxExpression-2 && err == nil && again != x {
			t.Fatalf("%q is %v, and %v in brackets", s, x, again)
		}
	})
}
