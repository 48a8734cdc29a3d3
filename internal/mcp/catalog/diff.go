package catalog

import (
	"slices"
	"strings"
)

const (
	diffContext = 2       // number of unchanged lines to show before and after a difference
	maxDiff     = 4 << 20 // cells of diffSteps' table; larger texts are shown as entirely different
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
	var lines []diffLine
	add := func(mark byte, texts []string) {
		for _, text := range texts {
			lines = append(lines, diffLine{mark: mark, text: text})
		}
	}
	// Skip equal lines at the start and at the end, which most texts have. That makes diffSteps' table much smaller.
	for len(old) > 0 && len(new) > 0 && old[0] == new[0] {
		add(' ', old[:1])
		old, new = old[1:], new[1:]
	}
	var tail []string
	for len(old) > 0 && len(new) > 0 && old[len(old)-1] == new[len(new)-1] {
		tail = append(tail, old[len(old)-1])
		old, new = old[:len(old)-1], new[:len(new)-1]
	}
	slices.Reverse(tail)

	for _, step := range diffSteps(old, new) {
		add('-', old[:step.removed])
		add('+', new[:step.added])
		old, new = old[step.removed:], new[step.added:]
		if len(old) > 0 && len(new) > 0 { // both begin with a common line now, except after the last step
			add(' ', old[:1])
			old, new = old[1:], new[1:]
		}
	}
	add(' ', tail)
	return formatDiff(lines)
}

// formatDiff returns the changed lines of a diff, and the unchanged lines within diffContext lines of a change.
func formatDiff(lines []diffLine) string {
	var text strings.Builder
	lastShown := -1 // index of the last line that was written; -1 before the first one
	for i, line := range lines {
		nearby := lines[max(0, i-diffContext):min(len(lines), i+diffContext+1)]
		isNearChange := slices.ContainsFunc(nearby, func(l diffLine) bool { return l.mark != ' ' })
		if !isNearChange {
			continue
		}
		hasGap := lastShown >= 0 && lastShown != i-1
		if hasGap {
			text.WriteString("    …\n")
		}
		lastShown = i
		text.WriteString("  " + string(line.mark) + " " + line.text + "\n")
	}
	return text.String()
}

// diffStep has the numbers of lines between one common line of an old and a new text and the next one: those that only
// the old text has, and those that only the new text has.
type diffStep struct{ removed, added int }

// diffSteps returns a step to each line of the longest common subsequence of old and new, and a last step to the end of
// both texts. Each step begins after the common line of the step before. If the texts need a table of more than maxDiff
// cells, diffSteps returns only the step to the end.
func diffSteps(old, new []string) []diffStep {
	if (len(old)+1)*(len(new)+1) > maxDiff {
		return []diffStep{{removed: len(old), added: len(new)}}
	}
	longest := commonLengths(old, new)
	var steps []diffStep
	var step diffStep // from the latest common line to old[i] and new[j]
	i, j := 0, 0
	for i < len(old) && j < len(new) {
		switch {
		case old[i] == new[j]:
			steps = append(steps, step)
			step = diffStep{}
			i++
			j++
		case longest[i+1][j] >= longest[i][j+1]:
			step.removed++
			i++
		default:
			step.added++
			j++
		}
	}
	step.removed += len(old) - i
	step.added += len(new) - j
	return append(steps, step)
}

// commonLengths returns a table whose cell [i][j] is the length of the longest common subsequence of a[i:] and b[j:].
func commonLengths(a, b []string) [][]int32 {
	width := len(b) + 1
	cells := make([]int32, (len(a)+1)*width)
	table := slices.Collect(slices.Chunk(cells, width))
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				table[i][j] = table[i+1][j+1] + 1
			} else {
				table[i][j] = max(table[i+1][j], table[i][j+1])
			}
		}
	}
	return table
}
