// Package record stores with each run what its events do not have and its export needs, and builds the
// export from both.
//
//	r := record.New(record.Options{Log: log, Retention: time.Hour})
//	err := r.Begin(ctx, run.ID, record.Beginning{Request: request, Tools: list}) // once, before the first step
//	doc, err := r.Export(ctx, run.ID)
//
// Tools, agents and prompts are stored once, under their hash, and runs refer to them. So a run costs
// some 200 bytes more than its events. A Recorder may be used concurrently.
//
// A run continues if this fails: its export then lists what is missing, and cannot be run again. The system
// prompt is not stored at all. The export renders it again from its template, and compares the result with a
// checksum, so a change of how prompts are rendered makes it missing and not wrong.
package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"answerd/internal/agent/replay"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/llm"
	"answerd/internal/mcp/catalog"
	"answerd/internal/values"
)

// Options configure a Recorder. Log is required.
type Options struct {
	Log       event.Log
	Retention time.Duration // of the events of a run; 0 means event.DefaultRetention
	Service   string        // the version of answerd
}

// Recorder stores the beginnings of runs.
type Recorder struct {
	Options

	mu    sync.Mutex           // protects what follows
	known map[string]time.Time // when a definition was stored last by this process, by its hash
	bytes int                  // of the definitions that were stored since known was empty
	tools map[toolKey]string   // the hash of a tool's definition; a cache, emptied at maxHashes
}

// toolKey identifies the definition of a tool.
type toolKey struct {
	version, name, server string
	needsApproval         bool
}

// Bounds of what one process stores.
const (
	maxDefinitions = 4 << 20   // bytes of definitions in one retention; a log in memory has 16 MiB for all values
	maxHashes      = 10_000    // tools whose hashes are cached
	maxDefinition  = 100 << 10 // bytes of one definition
	storeWorkers   = 8         // definitions that are stored at the same time
)

// beginningPrefix comes before each piece of a beginning in the notes of a run.
const beginningPrefix = replay.NoteBeginning + " "

// requestName is the name under which a log stores a request to the model. It begins with a character that ids
// of calls do not have.
const requestName = "\x00request"

// IsReserved reports whether the id of a call is a name of this package.
func IsReserved(callID string) bool { return len(callID) > 0 && callID[0] == 0 }

// New returns a Recorder.
func New(o Options) *Recorder {
	if o.Retention <= 0 {
		o.Retention = event.DefaultRetention
	}
	return &Recorder{Options: o, known: make(map[string]time.Time), tools: make(map[toolKey]string)}
}

// Beginning is what a run begins with.
type Beginning struct {
	Request  export.Request // without the question, if the run's start event has it
	Settings export.Settings
	System   string        // the system prompt
	Messages []llm.Message // the others; nil if they are the question alone
	History  int
	Tools    *ToolList  // that the run may call
	Offered  []llm.Tool // tools of answerd itself that the model is offered
	// Requests says that the requests to the model are recorded too.
	Requests bool
}

// ToolList has the tools that runs may call. Runs with the same tools share it, so that the definitions of
// 1,000 tools are not looked up for each of them, which took 19 % of an answer's CPU time.
type ToolList struct {
	tools []catalog.Tool

	mu     sync.Mutex // protects the fields below
	hashes []byte     // of the definitions, as the elements of a JSON array
	stored time.Time  // when all definitions were stored; zero if one is not
}

// NewToolList returns the list of some tools, which must not change.
func NewToolList(tools []catalog.Tool) *ToolList { return &ToolList{tools: tools} }

// beginning is the stored form of Beginning.
type beginning struct {
	Request  export.Request   `json:"request"`
	Context  string           `json:"context"` // the hash of a sharedContext
	System   string           `json:"system"`  // the beginning of the hash of the system prompt
	Messages []export.Message `json:"messages,omitempty"`
	History  int              `json:"history,omitempty"`
	Requests bool             `json:"requests,omitempty"`
}

// sharedContext is what runs of the same agent, model and tools have in common.
type sharedContext struct {
	Settings export.Settings `json:"settings"`
	Tools    []string        `json:"tools"` // hashes of definitions
}

// checksumBytes is how much of the hash of the system prompt is stored. It only tells whether the export
// renders the same text.
const checksumBytes = 16

// Begin stores what a run begins with. An error means that the run cannot be exported in full.
func (r *Recorder) Begin(ctx context.Context, run string, begin Beginning) error {
	settings, err := json.Marshal(begin.Settings)
	if err != nil {
		return fmt.Errorf("encode the settings of a run: %w", err)
	}
	hashes, undefined := r.defineTools(ctx, begin.Tools)

	shared := slices.Concat([]byte(`{"settings":`), settings, []byte(`,"tools":[`), hashes) // a sharedContext
	definitions := make(map[string][]byte)
	for _, t := range begin.Offered {
		own := export.Tool{Name: t.Name, Description: t.Description, InputSchema: t.Schema}
		data, err := json.Marshal(own)
		if err != nil {
			return fmt.Errorf("encode the definition of a tool: %w", err)
		}
		hash := export.Digest(data)
		shared, definitions[hash] = appendHash(shared, hash), data
	}

	shared = append(shared, "]}"...)
	stored := beginning{
		Request:  begin.Request,
		Context:  export.Digest(shared),
		System:   export.Digest([]byte(begin.System))[:checksumBytes],
		History:  begin.History,
		Requests: begin.Requests,
	}
	if begin.Messages != nil {
		stored.Messages = messages(begin.Messages)
	}
	definitions[stored.Context] = shared
	undefined = errors.Join(undefined, r.define(ctx, definitions))

	data, err := json.Marshal(stored)
	for piece := range slices.Chunk(data, event.MaxNote-len(beginningPrefix)) {
		if err == nil { // it is stored together with the next events
			err = r.Log.AddNote(ctx, run, append([]byte(beginningPrefix), piece...))
		}
	}
	if err != nil {
		err = fmt.Errorf("store what a run begins with: %w", err)
	}
	return errors.Join(err, undefined)
}

// appendHash appends a hash to an open array.
func appendHash(array []byte, hash string) []byte {
	if n := len(array); n > 0 && array[n-1] != '[' {
		array = append(array, ',')
	}
	return append(append(append(array, '"'), hash...), '"')
}

// defineTools stores the definitions of the tools, unless they are stored for long enough. It returns their
// hashes as the elements of a JSON array.
func (r *Recorder) defineTools(ctx context.Context, list *ToolList) (hashes []byte, err error) {
	list.mu.Lock()
	hashes, stored := list.hashes, list.stored
	list.mu.Unlock()
	if time.Since(stored) < r.Retention {
		return hashes, nil
	}
	hashes = nil
	all, definitions := make([]string, 0, len(list.tools)), make(map[string][]byte)
	for _, t := range list.tools {
		hash, data := r.hashTool(t)
		if data != nil {
			definitions[hash] = data
		}
		all, hashes = append(all, hash), appendHash(hashes, hash)
	}
	err = r.define(ctx, definitions)
	stored = r.oldestOf(all)
	list.mu.Lock()
	defer list.mu.Unlock()
	list.hashes, list.stored = hashes, stored
	return hashes, err
}

// oldestOf returns when the first of some definitions was stored, or the zero time if one is not stored.
func (r *Recorder) oldestOf(hashes []string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := time.Now()
	for _, hash := range hashes {
		if at := r.known[hash]; at.Before(oldest) {
			oldest = at
		}
	}
	return oldest
}

// hashTool returns the hash of a tool's definition, and the definition unless the hash was cached.
func (r *Recorder) hashTool(tool catalog.Tool) (hash string, data []byte) {
	key := toolKey{tool.Version(), tool.Name, tool.Server, tool.NeedsApproval}
	r.mu.Lock()
	hash, cached := r.tools[key]
	cached = cached && key.version != "" && r.isFreshLocked(hash)
	r.mu.Unlock()
	if cached {
		return hash, nil
	}
	data, _ = json.Marshal(Definition(tool)) // schemas are valid JSON, so that the definition always marshals
	hash = export.Digest(data)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tools) >= maxHashes {
		clear(r.tools)
	}
	r.tools[key] = hash
	return hash, data
}

// Definition returns a tool of the catalog in the form of an export, without its hash.
func Definition(t catalog.Tool) export.Tool {
	var annotations json.RawMessage
	if t.Annotations != nil {
		annotations, _ = json.Marshal(t.Annotations) // booleans always marshal
	}
	return export.Tool{
		Name: t.Name, Server: t.Server, Original: t.Original, Title: t.Title, Description: t.Description, InputSchema: t.InputSchema,
		OutputSchema: t.OutputSchema, Annotations: annotations, NeedsApproval: t.NeedsApproval, Version: t.Version(),
	}
}

// isFreshLocked reports whether a definition is stored for long enough for a run that begins now.
func (r *Recorder) isFreshLocked(hash string) bool {
	at, ok := r.known[hash]
	return ok && time.Since(at) < r.Retention
}

// define stores the definitions that are not stored yet, or not for long enough. A definition is kept for
// twice the retention, and so for the retention of every run that refers to it while it is fresh.
func (r *Recorder) define(ctx context.Context, definitions map[string][]byte) error {
	var missing []string
	r.mu.Lock()
	for hash := range definitions {
		if !r.isFreshLocked(hash) {
			missing = append(missing, hash)
		}
	}
	r.mu.Unlock()
	if len(missing) == 0 {
		return nil
	}
	errs := make([]error, storeWorkers)
	var wg sync.WaitGroup
	for w := range storeWorkers {
		wg.Go(func() {
			for i := w; i < len(missing); i += storeWorkers {
				errs[w] = errors.Join(errs[w], r.defineOne(ctx, missing[i], definitions[missing[i]]))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// errTooMany means that the process has stored as many bytes of definitions as it may.
var errTooMany = errors.New("too many definitions of tools and agents are stored")

// defineOne stores a definition, or extends the time for which it is kept. It marks the definition as known
// before it asks the log, so that 100 runs which begin at once do not store it 100 times. If the log fails, these
// runs have an export with a missing definition, and the next run tries again.
func (r *Recorder) defineOne(ctx context.Context, hash string, data []byte) error {
	if len(data) > maxDefinition {
		return fmt.Errorf("a definition of %d bytes is too large to be stored", len(data))
	}
	r.mu.Lock()

	_, again := r.known[hash]
	if !again && r.bytes+len(data) > maxDefinitions {
		r.forgetOldLocked()
		if r.bytes+len(data) > maxDefinitions {
			r.mu.Unlock()
			return errTooMany
		}
	}
	if !again {
		r.bytes += len(data)
	}

	// Concurrent runs need not store it too.
	r.known[hash] = time.Now()
	r.mu.Unlock()
	key := definitionKey(hash)
	_, revision, err := r.Log.Value(ctx, key)
	if err == nil {
		_, err = r.Log.SetValue(ctx, key, data, revision, 2*r.Retention)
	}
	if err != nil {
		r.mu.Lock()
		if _, counted := r.known[hash]; counted { // else a concurrent failure has subtracted it
			delete(r.known, hash)
			r.bytes -= len(data)
		}
		r.mu.Unlock()
		return fmt.Errorf("store a definition: %w", err)
	}
	return nil
}

// forgetOldLocked forgets definitions that the log has dropped. Their sizes are not known any more, so
// the count starts again when none is left.
func (r *Recorder) forgetOldLocked() {
	for hash, at := range r.known {
		if time.Since(at) >= 2*r.Retention {
			delete(r.known, hash)
		}
	}
	if len(r.known) == 0 {
		r.bytes = 0
	}
}

// definitionKey returns the key of a definition among the values of the log.
func definitionKey(hash string) values.Key { return values.NewKey("definition", hash) }

// storedRequest is the stored form of a request to the model.
type storedRequest struct {
	export.ModelRequest
	Attempt int `json:"attempt,omitempty"` // of the job; a step that runs again has another one
}

// AddRequest stores a request to the model with its run. step is the number of the step and try the number of the
// request in that step, both from 1. attempt is the attempt of the run's job, 0 without a job: a step runs again after
// a takeover, and attempt tells its requests from those of the first time.
func (r *Recorder) AddRequest(ctx context.Context, run string, step, try, attempt int, request llm.Request) error {
	recorded := export.ModelRequest{
		Step: step, Model: request.Model, Messages: messages(request.Messages), ToolChoice: request.ToolChoice,
		MaxTokens: request.MaxTokens, Sampling: request.Sampling, OutputSchema: request.OutputSchema,
	}
	for _, t := range request.Tools {
		recorded.Tools = append(recorded.Tools, t.Name)
	}
	data, err := json.Marshal(storedRequest{recorded, attempt})
	if err == nil {
		err = r.Log.SaveResult(ctx, run, requestKey(step, try), data)
	}
	if err != nil {
		return fmt.Errorf("store a model request: %w", err)
	}
	return nil
}

// requestKey returns the name under which a request is stored with its run. addRequests tries the numbers in order.
func requestKey(step, try int) string { return fmt.Sprintf("%s %d %d", requestName, step, try) }

// messages returns messages in the form of an export. What a provider wants back with a message is left
// out: it is for the provider alone.
func messages(all []llm.Message) []export.Message {
	out := make([]export.Message, len(all))
	for i, m := range all {
		x := export.Message{Role: string(m.Role), Text: m.Text, CallID: m.CallID, Tool: m.Tool, Failed: m.Failed}
		for _, c := range m.Calls {
			x.Calls = append(x.Calls, export.Call{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
		for _, f := range m.Media {
			x.Media = append(x.Media, export.Media(f))
		}
		out[i] = x
	}
	return out
}

// Executing says for which run a context is.
type Executing struct {
	Run string
	// Parent is the run, and Call the call of it, that started the run; "" if a caller did.
	Parent, Call string
}

type executingKey struct{}

// WithRun returns the context of a run, with which the agent calls the model and the tools.
func WithRun(ctx context.Context, e Executing) context.Context {
	return context.WithValue(ctx, executingKey{}, e)
}

// RunOf returns the run that ctx belongs to.
func RunOf(ctx context.Context) (e Executing, ok bool) {
	e, ok = ctx.Value(executingKey{}).(Executing)
	return e, ok
}
