// Package record stores what a run's export needs but its events do not contain. It builds the export from both.
//
//	r := record.New(record.Options{Log: log, Retention: time.Hour})
//	err := r.Begin(ctx, run.ID, record.Beginning{Request: request, Tools: list}) // once, before the first step
//	doc, err := r.Export(ctx, run.ID)
//
// The definitions of tools and the settings of agents are stored only once, under their hash, and runs refer to them.
// So a run takes only about 200 bytes more than its events. A Recorder may be used concurrently.
//
// If Begin fails, the run continues, but its export lists what is missing and cannot be run again. The system prompt is
// not stored at all: Export renders it again from its template, and compares the result with a checksum. If a later
// version renders the template differently, the export has no prompt, instead of a wrong one.
package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
	Retention time.Duration // how long the log keeps a run's events; 0 means event.DefaultRetention
	Service   string        // the version of answerd
}

// Recorder stores what runs begin with.
type Recorder struct {
	Options

	mu          sync.Mutex            // protects the fields below
	stored      map[string]definition // definitions that this process has stored, or began to store, by hash
	storedBytes int                   // the size of the definitions in stored
	toolHashes  map[toolKey]string    // a cache of the hashes of tools' definitions; emptied at maxHashes
}

// definition is a definition that was last stored at the time at, with its size in bytes.
type definition struct {
	at   time.Time
	size int
}

// toolKey identifies the definition of a tool.
type toolKey struct {
	version, name, server string
	needsApproval         bool
}

// Limits on what one process stores.
const (
	maxDefinitions = 4 << 20   // maximum of storedBytes; a log in memory has 16 MiB for all values
	maxHashes      = 10_000    // tools whose hashes are cached
	maxDefinition  = 100 << 10 // bytes of one definition
	storeWorkers   = 8         // definitions to store concurrently
)

// beginningPrefix precedes each piece of a beginning in a run's notes.
const beginningPrefix = replay.NoteBeginning + " "

// requestName begins the names under which requests to the model are stored among a run's results. The NUL
// distinguishes them from the ids of calls, under which the calls' results are stored.
const requestName = "\x00request"

// IsReserved reports whether callID is not the id of a call, but a name that this package uses among a run's results.
func IsReserved(callID string) bool { return len(callID) > 0 && callID[0] == 0 }

// New returns a Recorder.
func New(o Options) *Recorder {
	if o.Retention <= 0 {
		o.Retention = event.DefaultRetention
	}
	return &Recorder{Options: o, stored: make(map[string]definition), toolHashes: make(map[toolKey]string)}
}

// Beginning is what Begin stores about a run.
type Beginning struct {
	Request  export.Request // may lack the question, which the start event has
	Settings export.Settings
	System   string        // the system prompt
	Messages []llm.Message // the messages after the system prompt; nil if there is only the question
	History  int           // the number of Messages before the question
	Tools    *ToolList     // the tools of servers that the run may call
	Offered  []llm.Tool    // tools that answerd itself offers to the model
	Requests bool          // whether requests to the model are recorded too, with AddRequest
}

// ToolList has the tools that runs may call. Runs with the same tools share it, because looking up the definitions of
// 1,000 tools for each run took 19 % of an answer's CPU time.
type ToolList struct {
	tools []catalog.Tool

	mu       sync.Mutex // protects the fields below
	hashes   []byte     // the definitions' hashes, as the elements of a JSON array without brackets
	storedAt time.Time  // the oldest time at which one of the definitions was stored; zero if one is not stored
}

// NewToolList returns a ToolList of tools. The slice must not change afterwards.
func NewToolList(tools []catalog.Tool) *ToolList { return &ToolList{tools: tools} }

// beginning is the stored form of Beginning.
type beginning struct {
	Request  export.Request   `json:"request"`
	Context  string           `json:"context"` // the hash of a sharedContext
	System   string           `json:"system"`  // the first checksumDigits of the system prompt's hash
	Messages []export.Message `json:"messages,omitempty"`
	History  int              `json:"history,omitempty"`
	Requests bool             `json:"requests,omitempty"`
}

// sharedContext is what all runs with the same agent, model and tools share.
type sharedContext struct {
	Settings export.Settings `json:"settings"`
	Tools    []string        `json:"tools"` // hashes of definitions
}

// checksumDigits is how many hex digits of the system prompt's hash are stored. That is enough to check that an export
// renders the same text.
const checksumDigits = 16

// Begin stores what a run begins with. After an error the run may continue, but its export will be incomplete. Begin
// stores the beginning itself even if it cannot store a definition.
func (r *Recorder) Begin(ctx context.Context, run string, begin Beginning) error {
	settings, err := json.Marshal(begin.Settings)
	if err != nil {
		return fmt.Errorf("encode the settings of a run: %w", err)
	}
	toolHashes, toolsErr := r.defineTools(ctx, begin.Tools)

	// shared is the JSON of a sharedContext, built by hand so that the encoded hashes of the tools can be reused.
	shared := slices.Concat([]byte(`{"settings":`), settings, []byte(`,"tools":[`), toolHashes)
	definitions := make(map[string][]byte) // by hash
	for _, t := range begin.Offered {
		data, err := json.Marshal(export.Tool{Name: t.Name, Description: t.Description, InputSchema: t.Schema})
		if err != nil {
			return fmt.Errorf("encode the definition of a tool: %w", err)
		}
		hash := export.Digest(data)
		shared = appendHash(shared, hash)
		definitions[hash] = data
	}
	shared = append(shared, "]}"...)

	stored := beginning{
		Request:  begin.Request,
		Context:  export.Digest(shared),
		System:   export.Digest([]byte(begin.System))[:checksumDigits],
		History:  begin.History,
		Requests: begin.Requests,
	}
	if begin.Messages != nil {
		stored.Messages = exportMessages(begin.Messages)
	}
	definitions[stored.Context] = shared
	defineErr := r.define(ctx, definitions)
	notesErr := r.addBeginningNotes(ctx, run, stored)
	return errors.Join(notesErr, toolsErr, defineErr)
}

// addBeginningNotes adds the beginning to the run's notes, in pieces. It does not wait for the log: the notes are
// stored together with the next events.
func (r *Recorder) addBeginningNotes(ctx context.Context, run string, stored beginning) error {
	data, err := json.Marshal(stored)
	if err != nil {
		return fmt.Errorf("store what a run begins with: %w", err)
	}
	for piece := range slices.Chunk(data, event.MaxNote-len(beginningPrefix)) {
		if err := r.Log.AddNote(ctx, run, append([]byte(beginningPrefix), piece...)); err != nil {
			return fmt.Errorf("store what a run begins with: %w", err)
		}
	}
	return nil
}

// appendHash appends hash to array, a JSON array without its closing bracket, or only its elements.
func appendHash(array []byte, hash string) []byte {
	if n := len(array); n > 0 && array[n-1] != '[' {
		array = append(array, ',')
	}
	return strconv.AppendQuote(array, hash)
}

// defineTools stores the definitions of list's tools, unless all were stored less than the retention ago. It returns
// their hashes as the elements of a JSON array without brackets, even if it returns an error.
func (r *Recorder) defineTools(ctx context.Context, list *ToolList) (hashes []byte, err error) {
	list.mu.Lock()
	knownHashes, isFresh := list.hashes, time.Since(list.storedAt) < r.Retention
	list.mu.Unlock()
	if isFresh {
		return knownHashes, nil
	}

	allHashes := make([]string, 0, len(list.tools))
	definitions := make(map[string][]byte)
	for _, t := range list.tools {
		hash, definition := r.hashTool(t)
		if definition != nil {
			definitions[hash] = definition
		}
		allHashes = append(allHashes, hash)
		hashes = appendHash(hashes, hash)
	}
	err = r.define(ctx, definitions)
	storedAt := r.oldestOf(allHashes)

	list.mu.Lock()
	defer list.mu.Unlock()
	list.hashes, list.storedAt = hashes, storedAt
	return hashes, err
}

// oldestOf returns the earliest time at which one of the definitions was stored. It returns the zero time if one of
// them is not stored, and the current time if hashes is empty.
func (r *Recorder) oldestOf(hashes []string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := time.Now()
	for _, hash := range hashes {
		if at := r.stored[hash].at; at.Before(oldest) {
			oldest = at
		}
	}
	return oldest
}

// hashTool returns the hash of a tool's definition. definition is nil if the hash was cached and the definition need
// not be stored again. If the tool has no version, the cache is not used.
func (r *Recorder) hashTool(tool catalog.Tool) (hash string, definition []byte) {
	key := toolKey{version: tool.Version(), name: tool.Name, server: tool.Server, needsApproval: tool.NeedsApproval}
	r.mu.Lock()
	hash, isCached := r.toolHashes[key]
	needNotStore := isCached && key.version != "" && r.isFreshLocked(hash)
	r.mu.Unlock()
	if needNotStore {
		return hash, nil
	}
	definition, _ = json.Marshal(Definition(tool)) // cannot fail, because schemas are valid JSON
	hash = export.Digest(definition)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.toolHashes) >= maxHashes {
		clear(r.toolHashes)
	}
	r.toolHashes[key] = hash
	return hash, definition
}

// Definition returns a tool in the form that exports use, without its hash.
func Definition(t catalog.Tool) export.Tool {
	var annotations json.RawMessage
	if t.Annotations != nil {
		annotations, _ = json.Marshal(t.Annotations) // cannot fail for strings and booleans
	}
	return export.Tool{
		Name: t.Name, Server: t.Server, Original: t.Original, Title: t.Title, Description: t.Description,
		InputSchema: t.InputSchema, OutputSchema: t.OutputSchema, Annotations: annotations, NeedsApproval: t.NeedsApproval,
		Version: t.Version(),
	}
}

// isFreshLocked reports whether the log will keep a definition as long as the events of a run that begins now. It keeps
// definitions for twice the retention, so this one must be younger than the retention. r.mu must be held.
func (r *Recorder) isFreshLocked(hash string) bool {
	return time.Since(r.stored[hash].at) < r.Retention // the zero time if it is not stored
}

// define stores definitions, which are keyed by hash, except those that are fresh (isFreshLocked). It stores up to
// storeWorkers of them concurrently, and returns when all have been stored or have failed.
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
	for worker := range storeWorkers {
		wg.Go(func() {
			for i := worker; i < len(missing); i += storeWorkers {
				hash := missing[i]
				errs[worker] = errors.Join(errs[worker], r.defineOne(ctx, hash, definitions[hash]))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// errTooMany means that this process has stored maxDefinitions bytes of definitions.
var errTooMany = errors.New("too many definitions of tools and agents are stored")

// defineOne stores a definition, or makes the log keep it longer. It marks the definition as stored before it calls the
// log, so that 100 runs that begin at once do not store it 100 times. If the log fails, the exports of these runs lack
// the definition, and the next run tries again.
func (r *Recorder) defineOne(ctx context.Context, hash string, data []byte) error {
	if len(data) > maxDefinition {
		return fmt.Errorf("a definition of %d bytes is too large to be stored", len(data))
	}
	if err := r.markStored(hash, len(data)); err != nil {
		return err
	}
	key := definitionKey(hash)
	_, revision, err := r.Log.Value(ctx, key)
	if err == nil {
		_, err = r.Log.SetValue(ctx, key, data, revision, 2*r.Retention)
	}
	if err != nil {
		r.unmarkStored(hash, len(data))
		return fmt.Errorf("store a definition: %w", err)
	}
	return nil
}

// markStored marks a definition of size bytes as stored now. If the definitions would then exceed maxDefinitions bytes,
// it returns errTooMany and does not mark it. A definition that is already marked is always accepted.
func (r *Recorder) markStored(hash string, size int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, isMarked := r.stored[hash]; !isMarked {
		if r.storedBytes+size > maxDefinitions {
			r.forgetExpiredLocked()
		}
		if r.storedBytes+size > maxDefinitions {
			return errTooMany
		}
		r.storedBytes += size
	}
	r.stored[hash] = definition{time.Now(), size}
	return nil
}

// unmarkStored undoes markStored, unless a concurrent failure already has.
func (r *Recorder) unmarkStored(hash string, size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, isMarked := r.stored[hash]; isMarked {
		delete(r.stored, hash)
		r.storedBytes -= size
	}
}

// forgetExpiredLocked removes definitions that the log no longer has from r.stored. The caller must hold r.mu.
func (r *Recorder) forgetExpiredLocked() {
	maps.DeleteFunc(r.stored, func(_ string, d definition) bool {
		hasExpired := time.Since(d.at) >= 2*r.Retention
		if hasExpired {
			r.storedBytes -= d.size
		}
		return hasExpired
	})
}

// definitionKey returns the key of a definition in the log's values.
func definitionKey(hash string) values.Key { return values.NewKey("definition", hash) }

// storedRequest is the stored form of a request to the model.
type storedRequest struct {
	export.ModelRequest
	Attempt int `json:"attempt,omitempty"` // see AddRequest
}

// AddRequest stores a request to the model with its run. step is the step's number, and try the request's number within
// the step, both from 1. attempt is the attempt of the run's job, or 0 without a job. After a takeover a step may run
// again, and attempt distinguishes its new requests from those before the takeover.
func (r *Recorder) AddRequest(ctx context.Context, run string, step, try, attempt int, request llm.Request) error {
	recorded := export.ModelRequest{
		Step:         step,
		Model:        request.Model,
		Messages:     exportMessages(request.Messages),
		ToolChoice:   request.ToolChoice,
		MaxTokens:    request.MaxTokens,
		Sampling:     request.Sampling,
		OutputSchema: request.OutputSchema,
	}
	for _, t := range request.Tools {
		recorded.Tools = append(recorded.Tools, t.Name)
	}
	data, err := json.Marshal(storedRequest{ModelRequest: recorded, Attempt: attempt})
	if err == nil {
		err = r.Log.SaveResult(ctx, run, requestKey(step, try), data)
	}
	if err != nil {
		return fmt.Errorf("store a model request: %w", err)
	}
	return nil
}

// requestKey returns the name under which a request is stored among its run's results.
func requestKey(step, try int) string { return fmt.Sprintf("%s %d %d", requestName, step, try) }

// exportMessages converts messages to the form that exports use. It leaves out their llm.Extensions, which only the
// provider that sent them can read.
func exportMessages(messages []llm.Message) []export.Message {
	out := make([]export.Message, len(messages))
	for i, m := range messages {
		out[i] = export.Message{Role: string(m.Role), Text: m.Text, CallID: m.CallID, Tool: m.Tool, Failed: m.Failed}
		for _, c := range m.Calls {
			out[i].Calls = append(out[i].Calls, export.Call{ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
		for _, file := range m.Media {
			out[i].Media = append(out[i].Media, export.Media(file))
		}
	}
	return out
}

// Executing identifies the run that a context belongs to.
type Executing struct {
	Run string
	// Parent is the run that started Run, and Call the id of its call that did. Both are "" if a client started Run.
	Parent, Call string
}

type executingKey struct{}

// WithRun returns a context for the run e. The agent uses it to call the model and the tools, so that these can find
// out with RunOf which run they are called for.
func WithRun(ctx context.Context, e Executing) context.Context {
	return context.WithValue(ctx, executingKey{}, e)
}

// RunOf returns the run that WithRun stored in ctx. ok is false if there is none.
func RunOf(ctx context.Context) (e Executing, ok bool) {
	e, ok = ctx.Value(executingKey{}).(Executing)
	return e, ok
}
