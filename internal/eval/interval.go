package eval

import "math"

// z is the quantile of the standard normal distribution for intervals of 95 %.
const z = 1.959963984540054

// Interval is a confidence interval of 95 %.
type Interval [2]float64

// wilson returns the score interval of Wilson (1927) for the share of the runs that passed. In contrast to the normal
// approximation it stays within 0 and 1, and it is useful for a few runs, also if all of them pass. Without runs it is
// [0, 1].
func wilson(passed, runs int) Interval {
	if runs == 0 {
		return Interval{0, 1}
	}
	n := float64(runs)
	share := float64(passed) / n
	center := (share + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(share*(1-share)/n+z*z/(4*n*n))
	low, high := center-half, center+half
	if passed == 0 {
		low = 0 // exactly, whatever the rounding
	}
	if passed == runs {
		high = 1
	}
	return Interval{low, high}
}

// difference returns the interval for the difference of two independent shares, passed1 of runs1 minus passed2 of runs2,
// by Newcombe's hybrid score method (1998, method 10). If one of the shares has no runs, the interval is [-1, 1].
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
