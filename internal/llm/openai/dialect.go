package openai

import (
	"bytes"
	"net/http"
	"strings"
	"sync"

	"answerd/internal/llm"
)

// dialect says which parts of a request an endpoint refuses. Strict endpoints answer 400 or 422
// to members that they do not know, and name them. Mistral refuses max_completion_tokens, and
// Groq refuses members that it has sent itself with some of its models.
type dialect struct {
	oldMaxTokens    bool // max_tokens in place of max_completion_tokens
	noStreamOptions bool
	noExtensions    bool // llm.Extensions are left out; decided anew for each answer
}

// without returns d changed by what the error refuses of the request body; d itself if it
// names nothing that can be left out. An endpoint that misses a member is not meant: DeepSeek
// says that reasoning_content "must be passed back".
func (d dialect) without(e *llm.Error, body []byte) dialect {
	if e.Status != http.StatusBadRequest && e.Status != http.StatusUnprocessableEntity {
		return d
	}
	message := strings.ToLower(e.Message)
	switch {
	case strings.Contains(message, "max_completion_tokens") && bytes.Contains(body, []byte(`"max_completion_tokens":`)):
		d.oldMaxTokens = true
	case strings.Contains(message, "stream_options") && bytes.Contains(body, []byte(`"stream_options":`)):
		d.noStreamOptions = true
	case !d.noExtensions && !containsAny(message, missingWords) && containsAny(message, refusedWords) && namesExtension(message, body):
		d.noExtensions = true
	}
	return d
}

// refusedWords are, in lower case, the words of endpoints for a member that they do not accept,
// missingWords those for one that they require.
var (
	refusedWords = []string{"unsupported", "not supported", "not permitted", "extra_forbidden", "not allowed", "unknown", "unrecognized", "unexpected", "invalid", "must not", "should not"}
	missingWords = []string{"must be passed back", "missing", "required"}
)

// namesExtension reports whether the message names a member that only extensions have, and the
// body has it.
func namesExtension(message string, body []byte) bool {
	for _, name := range []string{"reasoning_content", "reasoning_details", "reasoning", "extra_content", "thinking", "channel"} {
		if strings.Contains(message, name) && bytes.Contains(body, []byte(`"`+name+`":`)) {
			return true
		}
	}
	return false
}

// remembered returns what holds for all requests to the endpoint. Members of one answer that
// were refused may be accepted of another model.
func (d dialect) remembered() dialect {
	d.noExtensions = false
	return d
}

// dialectStore holds the dialect of an endpoint for all of its streams.
type dialectStore struct {
	mu sync.Mutex // protects what follows
	d  dialect
}

func (s *dialectStore) Load() dialect {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.d
}

func (s *dialectStore) Store(d dialect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.d = d
}
