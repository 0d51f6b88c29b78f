package main

import (
	"math"
	"slices"
	"time"
)

// A summary contains the statistics of many samples, in milliseconds.
type summary struct {
	N        int     `json:"n"`
	Median   float64 `json:"median"`
	P99      float64 `json:"p99"`
	Min      float64 `json:"min"`
	Max      float64 `json:"max"`
	Quartile struct {
		Lower float64 `json:"lower"`
		Upper float64 `json:"upper"`
	} `json:"quartiles"`
	CPU    float64 `json:"cpu"`              // the median of the processor time
	Reason string  `json:"reason,omitempty"` // the error that ended the measurement, or ""
}

func summarize(samples []sample) summary {
	var wall, cpu []float64
	for _, s := range samples {
		wall, cpu = append(wall, ms(s.wall)), append(cpu, ms(s.cpu))
	}
	slices.Sort(wall)
	slices.Sort(cpu)
	s := summary{N: len(samples)}
	if s.N == 0 {
		return s
	}
	s.Median, s.P99, s.Min, s.Max, s.CPU = quantile(wall, 0.5), quantile(wall, 0.99), wall[0], wall[s.N-1], quantile(cpu, 0.5)
	s.Quartile.Lower, s.Quartile.Upper = quantile(wall, 0.25), quantile(wall, 0.75)
	return s
}

// quantile returns the q-quantile of sorted values by nearest rank. The median of an even number of values is the mean of the two
// middle values.
func quantile(sorted []float64, q float64) float64 {
	n := len(sorted)
	if q == 0.5 && n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[min(n-1, max(0, int(math.Ceil(q*float64(n)))-1))]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// order returns the order of the sides in an iteration. It rotates, and every other iteration reverses it, so that each
// side gets each position and each predecessor equally often. For example, the orders are A B, B A, A B, or A B C, C B
// A, B C A.
func order(sides, iteration int) []int {
	all := make([]int, sides)
	for i := range all {
		all[i] = (i + iteration/2) % sides
	}
	if sides == 2 {
		all[0], all[1] = iteration%2, 1-iteration%2
	} else if iteration%2 == 1 {
		slices.Reverse(all)
	}
	return all
}
