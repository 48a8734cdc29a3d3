package window

import (
	"sync"
	"time"
)

// Bounds of Sizes.
const (
	maxSizes = 1000 // models
	// sizeLifetime is the time after which a size is forgotten: an endpoint may have been restarted
	// with a larger window, which only a longer prompt shows.
	sizeLifetime = time.Hour
)

// Sizes remembers for each model the size of the window that its endpoint named when it refused a
// prompt. The zero value is empty. The methods may be called by any number of goroutines.
type Sizes struct {
	mu    sync.Mutex // protects what follows
	named map[string]namedSize
}

type namedSize struct {
	tokens int64
	at     time.Time
}

// Learn remembers the size of a model's window in tokens, and reports whether it was not known.
// It ignores 0. Beyond maxSizes it forgets the size of another model.
func (s *Sizes) Learn(model string, tokens int64) (isNew bool) {
	if tokens <= 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	isNew = s.sizeLocked(model) != tokens
	if s.named == nil {
		s.named = make(map[string]namedSize)
	}
	if _, known := s.named[model]; !known && len(s.named) >= maxSizes {
		for other := range s.named {
			delete(s.named, other)
			break
		}
	}
	s.named[model] = namedSize{tokens, time.Now()}
	return isNew
}

// Size returns the size of a model's window in tokens; 0 if it was not named within sizeLifetime.
func (s *Sizes) Size(model string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sizeLocked(model)
}

// sizeLocked is Size for a caller that holds the mutex. It deletes a size that is older than sizeLifetime.
func (s *Sizes) sizeLocked(model string) int64 {
	size, known := s.named[model]
	if !known || time.Since(size.at) > sizeLifetime {
		delete(s.named, model)
		return 0
	}
	return size.tokens
}
