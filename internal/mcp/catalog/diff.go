package catalog

import "strings"

const (
	diffContext = 2       // unchanged lines that are shown around a difference
	maxDiff     = 4 << 20 // cells of commonLines' table; larger texts are shown as entirely different
)

// diffLines returns the difference between two texts line by line, or "" if there is none. Lines
// begin with "-", "+" or a space; "…" stands for unchanged lines that are left out.
func diffLines(old, new []string) string {
	type line struct {
		mark byte
		text string
	}
	var all []line
	add := func(mark byte, texts []string) {
		for _, t := range texts {
			all = append(all, line{mark, t})
		}
	}
	// Most texts begin and end with equal lines. Without them the table is much smaller.
	head := 0
	for head < min(len(old), len(new)) && old[head] == new[head] {
		head++
	}
	tail := 0
	for tail < min(len(old), len(new))-head && old[len(old)-1-tail] == new[len(new)-1-tail] {
		tail++
	}
	add(' ', old[:head])
	a, b := old[head:len(old)-tail], new[head:len(new)-tail]
	for _, s := range commonLines(a, b) {
		add('-', a[:s.a])
		add('+', b[:s.b])
		a, b = a[s.a:], b[s.b:]
		if len(a) > 0 && len(b) > 0 {
			add(' ', a[:1])
			a, b = a[1:], b[1:]
		}
	}
	add(' ', old[len(old)-tail:])

	var out strings.Builder
	shown := -1 // index of the last line shown
	for i := range all {
		isNear := false
		for j := max(0, i-diffContext); j <= min(len(all)-1, i+diffContext); j++ {
			isNear = isNear || all[j].mark != ' '
		}
		if !isNear {
			continue
		}
		if shown >= 0 && shown != i-1 {
			out.WriteString("    …\n")
		}
		shown = i
		out.WriteString("  " + string(all[i].mark) + " " + all[i].text + "\n")
	}
	return out.String()
}

// diffStep has the number of lines to skip in each text up to the next common line.
type diffStep struct{ a, b int }

// commonLines returns the longest common subsequence of a and b: the steps to each of its lines,
// and a step to the end. It fills a table of the lengths for all pairs of suffixes and then
// follows the longest path.
func commonLines(a, b []string) []diffStep {
	if (len(a)+1)*(len(b)+1) > maxDiff {
		return []diffStep{{len(a), len(b)}}
	}
	width := len(b) + 1
	longest := make([]int32, (len(a)+1)*width) // of a[i:] and b[j:]
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				longest[i*width+j] = longest[(i+1)*width+j+1] + 1
			} else {
				longest[i*width+j] = max(longest[(i+1)*width+j], longest[i*width+j+1])
			}
		}
	}
	var out []diffStep
	i, j, from := 0, 0, diffStep{}
	for i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			out = append(out, diffStep{i - from.a, j - from.b})
			i, j = i+1, j+1
			from = diffStep{i, j}
		case longest[(i+1)*width+j] >= longest[i*width+j+1]:
			i++
		default:
			j++
		}
	}
	return append(out, diffStep{len(a) - from.a, len(b) - from.b})
}
