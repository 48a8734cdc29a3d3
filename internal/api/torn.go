package api

import "sync"

// maxTorn bounds the runs whose end was not told, beyond those that go on.
const maxTorn = 4096

// torn are the runs whose streams have not been read to their end by the page that
// started them, the oldest first. It is a help for who comes back, and not kept.
type torn struct {
	mu   sync.Mutex // protects runs
	runs []string
}

func (t *torn) add(run string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(run)
	if len(t.runs) >= maxTorn {
		t.runs = append(t.runs[:0], t.runs[1:]...)
	}
	t.runs = append(t.runs, run)
}

func (t *torn) remove(run string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(run)
}

func (t *torn) removeLocked(run string) {
	for i := range t.runs {
		if t.runs[i] == run {
			t.runs = append(t.runs[:i], t.runs[i+1:]...)
			return
		}
	}
}

func (t *torn) has(run string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.runs {
		if r == run {
			return true
		}
	}
	return false
}
