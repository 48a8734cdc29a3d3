package window

import (
	"sync"
	"time"
)

// Limits on Sizes.
const (
	maxSizes = 1000 // models with a known size
	// sizeLifetime is how long a size is remembered. The endpoint may be restarted with a larger window, and only a
	// request with a longer prompt could show that.
	sizeLifetime = time.Hour
)

// Sizes remembers the window size of each model, as the model's endpoint stated it when it refused a prompt. The zero
// value is empty. Its methods may be called concurrently.
type Sizes struct {
	mu      sync.Mutex // protects byModel
	byModel map[string]learnedSize
}

// learnedSize is the window size of one model.
type learnedSize struct {
	tokens    int64
	learnedAt time.Time
}

// Learn remembers the size of a model's window, in tokens. It returns true if that size was not known. It ignores a
// size of 0. If maxSizes models are already known, it forgets an arbitrary one.
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
		for arbitrary := range s.byModel {
			delete(s.byModel, arbitrary)
			break
		}
	}
	s.byModel[model] = learnedSize{tokens: tokens, learnedAt: time.Now()}
	return isNew
}

// Size returns the size of a model's window in tokens, or 0 if none was learned within sizeLifetime.
func (s *Sizes) Size(model string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sizeLocked(model)
}

// sizeLocked returns the size of a model's window in tokens, or 0 if it is unknown. It deletes a size older than
// sizeLifetime. The caller must hold s.mu.
func (s *Sizes) sizeLocked(model string) int64 {
	size, known := s.byModel[model]
	if !known || time.Since(size.learnedAt) > sizeLifetime {
		delete(s.byModel, model)
		return 0
	}
	return size.tokens
}
