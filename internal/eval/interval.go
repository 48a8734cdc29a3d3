package eval

import "math"

// z is the quantile of the standard normal distribution for intervals of 95 %.
const z = 1.959963984540054

// Interval is a confidence interval of 95 %.
type Interval [2]float64

// wilson returns the score interval of Wilson (1927) for a share of k in n. In contrast to the normal approximation it
// stays within 0 and 1, and it is useful for a few runs, also if all of them pass. Without runs it is [0, 1].
func wilson(k, n int) Interval {
	if n == 0 {
		return Interval{0, 1}
	}
	p, m := float64(k)/float64(n), float64(n)
	center := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	low, high := center-half, center+half
	if k == 0 {
		low = 0 // exactly, whatever the rounding
	}
	if k == n {
		high = 1
	}
	return Interval{low, high}
}

// difference returns the interval for the difference of two independent shares, k1 in n1 minus k2 in n2, by Newcombe's
// hybrid score method (1998, method 10). If one of the shares has no runs, the interval is [-1, 1].
func difference(k1, n1, k2, n2 int) Interval {
	if n1 == 0 || n2 == 0 {
		return Interval{-1, 1}
	}
	p1, p2 := float64(k1)/float64(n1), float64(k2)/float64(n2)
	a, b := wilson(k1, n1), wilson(k2, n2)
	return Interval{
		p1 - p2 - math.Hypot(p1-a[0], b[1]-p2),
		p1 - p2 + math.Hypot(a[1]-p1, p2-b[0]),
	}
}
