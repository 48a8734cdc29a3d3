package catalog

import (
	"slices"
	"strings"
)

const (
	diffContext = 2       // number of unchanged lines to show before and after a difference
	maxDiff     = 4 << 20 // cells of commonLines' table; larger texts are shown as entirely different
)

// diffLine is one line of a diff. mark is '-' for a line of the old text only, '+' for a line of the new text only, and
// ' ' for a line of both.
type diffLine struct {
	mark byte
	text string
}

// diffLines returns the difference between two texts, or "" if they are equal. Each line of the result begins with its
// mark. "…" replaces unchanged lines that are not close to a difference.
func diffLines(old, new []string) string {
	var all []diffLine
	add := func(mark byte, texts []string) {
		for _, t := range texts {
			all = append(all, diffLine{mark: mark, text: t})
		}
	}
	// Skip equal lines at the start and at the end, which most texts have. That makes commonLines' table much smaller.
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
	for _, step := range commonLines(a, b) {
		add('-', a[:step.a])
		add('+', b[:step.b])
		a, b = a[step.a:], b[step.b:]
		if len(a) > 0 && len(b) > 0 { // both begin with a common line now, except after the last step
			add(' ', a[:1])
			a, b = a[1:], b[1:]
		}
	}
	add(' ', old[len(old)-tail:])
	return formatDiff(all)
}

// formatDiff returns the changed lines of a diff, and the unchanged lines within diffContext lines of a change.
func formatDiff(lines []diffLine) string {
	var text strings.Builder
	lastShown := -1 // index of the last line that was written
	for i, line := range lines {
		nearby := lines[max(0, i-diffContext):min(len(lines), i+diffContext+1)]
		if !slices.ContainsFunc(nearby, func(l diffLine) bool { return l.mark != ' ' }) {
			continue
		}
		if lastShown >= 0 && lastShown != i-1 {
			text.WriteString("    …\n")
		}
		lastShown = i
		text.WriteString("  " + string(line.mark) + " " + line.text + "\n")
	}
	return text.String()
}

// diffStep has the numbers of lines to skip in each of two texts to reach the next common line.
type diffStep struct{ a, b int }

// commonLines returns the longest common subsequence of a and b, as a step to each common line and a last step to the
// end of both texts. Each step begins after the common line of the step before. If the texts need a table of more than
// maxDiff cells, commonLines returns only the step to the end. It fills a table with the length of the longest
// subsequence for each pair of suffixes, and then follows the longest path.
func commonLines(a, b []string) []diffStep {
	if (len(a)+1)*(len(b)+1) > maxDiff {
		return []diffStep{{len(a), len(b)}}
	}
	width := len(b) + 1
	longest := make([]int32, (len(a)+1)*width) // longest[i*width+j] is the length for a[i:] and b[j:]
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				longest[i*width+j] = longest[(i+1)*width+j+1] + 1
			} else {
				longest[i*width+j] = max(longest[(i+1)*width+j], longest[i*width+j+1])
			}
		}
	}
	var steps []diffStep
	i, j := 0, 0           // the position in a and b
	startA, startB := 0, 0 // where the current step begins
	for i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			steps = append(steps, diffStep{a: i - startA, b: j - startB})
			i++
			j++
			startA, startB = i, j
		case longest[(i+1)*width+j] >= longest[i*width+j+1]:
			i++
		default:
			j++
		}
	}
	return append(steps, diffStep{a: len(a) - startA, b: len(b) - startB})
}
