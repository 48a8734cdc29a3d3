package eval

import (
	"math"
	"testing"
)

// The numbers are those of Newcombe, Two-sided confidence intervals for the single proportion, Statistics in
// Medicine 17 (1998), table I, method 3.
func TestWilsonGivesPublishedIntervals(t *testing.T) {
	for _, c := range []struct {
		k, n int
		want Interval
	}{
		{81, 263, Interval{0.2553, 0.3662}},
		{15, 148, Interval{0.0624, 0.1605}},
		{0, 20, Interval{0, 0.1611}},
		{1, 29, Interval{0.0061, 0.1718}},
		{5, 5, Interval{0.5655, 1}},
		{0, 0, Interval{0, 1}},
	} {
		if got := wilson(c.k, c.n).rounded(); got != c.want {
			t.Errorf("wilson(%d, %d) = %v, want %v", c.k, c.n, got, c.want)
		}
	}
}

// The numbers are those of Newcombe, Interval estimation for the difference between independent
// proportions, Statistics in Medicine 17 (1998), table II, method 10.
func TestDifferenceGivesPublishedIntervals(t *testing.T) {
	for _, c := range []struct {
		k1, n1, k2, n2 int
		want           Interval
	}{
		{56, 70, 48, 80, Interval{0.0524, 0.3339}},
		{9, 10, 3, 10, Interval{0.1705, 0.8090}},
		{5, 56, 0, 29, Interval{-0.0381, 0.1926}},
		{0, 0, 1, 1, Interval{-1, 1}},
	} {
		got := difference(c.k1, c.n1, c.k2, c.n2)
		if math.Abs(got[0]-c.want[0]) > 5e-5 || math.Abs(got[1]-c.want[1]) > 5e-5 {
			t.Errorf("difference(%d/%d, %d/%d) = %v, want %v", c.k1, c.n1, c.k2, c.n2, got, c.want)
		}
	}
}

func TestIntervalsStayWithinTheirBounds(t *testing.T) {
	for n := 1; n <= 100; n++ {
		for k := 0; k <= n; k++ {
			p := float64(k) / float64(n)
			if i := wilson(k, n); i[0] < 0 || i[1] > 1 || i[0] > p || i[1] < p {
				t.Errorf("wilson(%d, %d) = %v, want an interval within 0 and 1 around %v", k, n, i, p)
			}
			if i := difference(k, n, n-k, n); i[0] < -1 || i[1] > 1 || math.IsNaN(i[0]+i[1]) {
				t.Errorf("difference(%d/%d, %d/%d) = %v, want an interval within -1 and 1", k, n, n-k, n, i)
			}
		}
	}
}
