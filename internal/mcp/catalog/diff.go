package catalog

import (
	"slices"
	"strings"
)

const (
	diffContext = 2       // number of unchanged lines to show before and after a difference
	maxDiff     = 4 << 20 // cells of the table of CommonLengths; larger texts are shown as entirely different
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
	add := func(mark byte, texts ...string) {
		for _, text := range texts {
			lines = append(lines, diffLine{mark: mark, text: text})
		}
	}
	// Skip equal lines at the start and at the end, which most texts have. That makes the table below much smaller.
	for len(old) > 0 && len(new) > 0 && old[0] == new[0] {
		add(' ', old[0])
		old, new = old[1:], new[1:]
	}
	var tail []string
	for len(old) > 0 && len(new) > 0 && old[len(old)-1] == new[len(new)-1] {
		tail = append(tail, old[len(old)-1])
		old, new = old[:len(old)-1], new[:len(new)-1]
	}
	slices.Reverse(tail)

	longest := CommonLengths(old, new)
	oldAt, newAt := 0, 0 // the current lines
	var added []string   // lines of new since the latest common line: they follow the lines of old that were removed
	for longest != nil && oldAt < len(old) && newAt < len(new) {
		switch {
		case old[oldAt] == new[newAt]:
			add('+', added...)
			added = nil
			add(' ', old[oldAt])
			oldAt++
			newAt++
		case longest[oldAt+1][newAt] >= longest[oldAt][newAt+1]:
			add('-', old[oldAt])
			oldAt++
		default:
			added = append(added, new[newAt])
			newAt++
		}
	}
	add('-', old[oldAt:]...)
	add('+', added...)
	add('+', new[newAt:]...)
	add(' ', tail...)
	return formatDiff(lines)
}

// CommonLengths returns a table whose cell [i][j] is the length of the longest common subsequence of a[i:] and b[j:]. It
// returns nil if the table would have more than maxDiff cells.
func CommonLengths(a, b []string) [][]int32 {
	width := len(b) + 1
	size := (len(a) + 1) * width
	if size > maxDiff {
		return nil
	}
	table := slices.Collect(slices.Chunk(make([]int32, size), width))
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
