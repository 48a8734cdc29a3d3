package eval

import "math"

// z is the quantile of the standard normal distribution for 95 % intervals.
const z = 1.959963984540054

// Interval is a 95 % confidence interval: its lower and upper bound.
type Interval [2]float64

// wilson returns Wilson's score interval (1927) for the share of runs that pass. Unlike the normal approximation it
// stays within 0 and 1, and is useful even for few runs or if all runs pass. Without runs it is [0, 1].
func wilson(passed, runs int) Interval {
	if runs == 0 {
		return Interval{0, 1}
	}
	n := float64(runs)
	share := float64(passed) / n
	center := (share + z*z/(2*n)) / (1 + z*z/n)
	halfWidth := z / (1 + z*z/n) * math.Sqrt(share*(1-share)/n+z*z/(4*n*n))
	low, high := center-halfWidth, center+halfWidth
	if passed == 0 {
		low = 0 // exactly, without rounding errors
	}
	if passed == runs {
		high = 1
	}
	return Interval{low, high}
}

// difference returns the confidence interval for the difference of two independent shares, passed1/runs1 -
// passed2/runs2. It uses Newcombe's hybrid score method (1998, method 10). If runs1 or runs2 is 0, the interval is [-1,
// 1].
func difference(passed1, runs1, passed2, runs2 int) Interval {
	if runs1 == 0 || runs2 == 0 {
		return Interval{-1, 1}
	}
	share1, share2 := float64(passed1)/float64(runs1), float64(passed2)/float64(runs2)
	interval1, interval2 := wilson(passed1, runs1), wilson(passed2, runs2)
	return Interval{
		share1 - share2 - math.Hypot(share1-interval1[0], interval2[1]-share2),
		share1 - share2 + math.Hypot(interval1[1]-share1, share2-interval2[0]),
	}
}
