package event

import (
	"crypto/rand"
	"strings"
)

const (
	idPrefix   = "run_"
	idLength   = 26 // characters behind it, of five random bits each
	markLength = 6  // of these, the last ones are the same in all ids of a process
)

// NewID implements Log.
func (m *Memory) NewID() string {
	return idPrefix + strings.ToLower(rand.Text()[:idLength-markLength]) + m.mark
}

// isForeign reports whether an id looks like one that another process made.
func (m *Memory) isForeign(id string) bool {
	name, ok := strings.CutPrefix(id, idPrefix)
	return ok && ValidID(id) && len(name) == idLength && name == strings.ToLower(name) && !strings.HasSuffix(name, m.mark)
}
