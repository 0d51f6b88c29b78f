package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A plot shows the time of a call by the number of objects of other containers. Both axes are logarithmic, and emptyAt
// is the horizontal position of 0.
type plot struct {
	title, unit string
	curves      []curve
}

type curve struct {
	name, colour, dash string
	points             []point
}

type point struct {
	fill   int
	median float64
}

// plots returns the plots for which the report contains figures, by file name.
func (r *report) plots() map[string]string {
	all := map[string]string{}
	for name, p := range map[string]plot{
		"host-local": {title: "host-local: cost of a call", unit: "reservations of others", curves: r.curves(func(scenario string) (int, bool) {
			rest, ok := strings.CutPrefix(scenario, "host-local/")
			n, err := strconv.Atoi(rest)
			return n, ok && err == nil
		})},
		"portmap": {title: "portmap: cost of a call for one mapping", unit: "mappings of others", curves: r.curves(func(scenario string) (int, bool) {
			if scenario == "portmap/1" {
				return 0, true
			}
			rest, ok := strings.CutPrefix(scenario, "portmap/1/foreign-")
			n, err := strconv.Atoi(rest)
			return n, ok && err == nil
		})},
	} {
		if len(p.curves) > 0 {
			all[name+".svg"] = p.svg()
		}
	}
	return all
}

// curves returns a curve for each side and verb. fill returns the number of objects in a scenario, or false if the scenario does
// not belong to the plot.
func (r *report) curves(fill func(string) (int, bool)) (all []curve) {
	for _, side := range []struct{ name, colour string }{{reference, "#c0392b"}, {plumb, "#1f6fb2"}} {
		for _, verb := range []struct{ name, dash string }{{"ADD", ""}, {"CHECK", "2 4"}, {"DEL", "8 4"}} {
			c := curve{name: side.name + " " + verb.name, colour: side.colour, dash: verb.dash}
			for _, o := range r.Scenarios {
				n, ok := fill(o.Scenario)
				for _, v := range o.Verbs {
					if s := v.Sides[side.name]; ok && v.Verb == verb.name && s.N > 0 {
						c.points = append(c.points, point{n, s.Median})
					}
				}
			}
			slices.SortFunc(c.points, func(a, b point) int { return cmp.Compare(a.fill, b.fill) })
			if len(c.points) > 0 {
				all = append(all, c)
			}
		}
	}
	return all
}

const (
	width, height          = 720, 420
	left, right, up, below = 70, 180, 50, 60
	emptyAt                = 100.0 // the position of 0 on the horizontal axis
)

func (p plot) svg() string {
	low, high, fills := p.extent()
	span := math.Log(max(2*emptyAt, float64(fills[len(fills)-1])) / emptyAt)
	x := func(n int) float64 {
		return left + (width-left-right)*math.Log(max(emptyAt, float64(n))/emptyAt)/span
	}
	y := func(v float64) float64 {
		return height - below - (height-up-below)*math.Log(v/low)/math.Log(high/low)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n", width, height)
	fmt.Fprintf(&b, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"28\" font-size=\"16\">%s</text>\n", width, height, left, p.title)
	for v := low; v <= high*1.001; v *= 10 {
		fmt.Fprintf(&b, "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g ms</text>\n",
			left, y(v), width-right, left-8, y(v)+4, v)
	}
	for _, n := range fills {
		fmt.Fprintf(&b, "<path d=\"M%.1f %dV%d\" stroke=\"#eee\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
			x(n), up, height-below, x(n), height-below+18, n)
	}
	fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (left+width-right)/2, height-18, p.unit)
	for i, c := range p.curves {
		var path []string
		for _, q := range c.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(q.fill), y(q.median)))
			fmt.Fprintf(&b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%s: %s ms</title></circle>\n", x(q.fill), y(q.median), c.colour, c.name, figure(q.median))
		}
		stroke := fmt.Sprintf("fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\"", c.colour, c.dash)
		fmt.Fprintf(&b, "<polyline points=\"%s\" %s/>\n", strings.Join(path, " "), stroke)
		line := up + 12 + 22*i
		fmt.Fprintf(&b, "<path d=\"M%d %dh30\" %s/><text x=\"%d\" y=\"%d\">%s</text>\n", width-right+16, line, stroke, width-right+54, line+4, c.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// extent returns the powers of ten around all medians, and the sorted numbers of objects.
func (p plot) extent() (low, high float64, fills []int) {
	low, high = math.Inf(1), 0
	for _, c := range p.curves {
		for _, q := range c.points {
			low, high = min(low, q.median), max(high, q.median)
			fills = append(fills, q.fill)
		}
	}
	slices.Sort(fills)
	low, high = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)))
	if low == high {
		high *= 10
	}
	return low, high, slices.Compact(fills)
}
