package window

import (
	"sync"
	"time"
)

// Bounds of Sizes.
const (
	maxSizes = 1000 // models
	// sizeLifetime is the time after which a size is forgotten. The endpoint may have been restarted with a larger
	// window since then, and only a request with a longer prompt can show that.
	sizeLifetime = time.Hour
)

// Sizes remembers for each model the size of the window that its endpoint named when it refused a
// prompt. The zero value is empty. The methods may be called by any number of goroutines.
type Sizes struct {
	mu      sync.Mutex // protects byModel
	byModel map[string]learnedSize
}

// learnedSize is the size of a model's window.
type learnedSize struct {
	tokens    int64
	learnedAt time.Time
}

// Learn remembers the size of a model's window in tokens. It reports whether another size, or none, was known. It
// ignores 0. If there are maxSizes models already, it forgets the size of any one of them.
func (s *Sizes) Learn(model string, tokens int64) (isNew bool) {
	if tokens <= 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	isNew = s.sizeLocked(model) != tokens
	if s.byModel == nil {
		s.byModel = make(map[string]learnedSize)
	}
	if _, known := s.byModel[model]; !known && len(s.byModel) >= maxSizes {
		for other := range s.byModel {
			delete(s.byModel, other)
			break
		}
	}
	s.byModel[model] = learnedSize{tokens: tokens, learnedAt: time.Now()}
	return isNew
}

// Size returns the size of a model's window in tokens; 0 if none was learned within sizeLifetime.
func (s *Sizes) Size(model string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sizeLocked(model)
}

// sizeLocked returns the size of a model's window in tokens; 0 if it is unknown. It deletes a size that is older than
// sizeLifetime. The caller holds s.mu.
func (s *Sizes) sizeLocked(model string) int64 {
	size, known := s.byModel[model]
	if !known || time.Since(size.learnedAt) > sizeLifetime {
		delete(s.byModel, model)
		return 0
	}
	return size.tokens
}
