// Package agent answers questions: it asks the model in turns, executes the tool calls that the
// model asks for, and appends everything that happens to the event log.
//
//	a, err := agent.New(agent.Options{Model: model, Tools: servers, Log: log})
//	run, err := a.Start(ctx, identity, agent.Request{Question: "What time is it in Rome?"})
//	reader := a.OpenReader(run.ID) // a run without readers is cancelled after a while
//	page, err := log.After(ctx, run.ID, 0)
//	reader.Close()
//	a.Drain(ctx)
//
// Start returns as soon as the log has the run's first event. From then on the run is independent of any connection. It
// ends with an answer or a failure, when Cancel is called, or when it has had no reader for Options.DisconnectGrace. It
// gets exactly one terminal event, even after a panic.
//
// The tool calls of one turn run concurrently, and their results go back to the model in call order. A failed call
// becomes a message to the model, and the run continues.
//
// The caller is the authenticated user for whom a run acts, and the run's owner.
//
// An Agent owns the runs that this process executes. Three types hold the state of a run: run has its identity, its
// context and the writer of its events, loop has the state of its turns, and toolExecution has the state of one tool
// call. If another process executed the run before, replay.State holds what that process did; it is nil for most runs.
//
// The agent stores every step before it makes the step visible outside: a question before a person is asked, a note
// before a call is sent, the events so far before a hook is asked. Without this, a process that takes over the run
// would not know that the step was taken, and would take it a second time.
//
// Start reading with loop.go, which has the turns of a run, and toolcall.go, which has the steps of a tool call. A run
// begins in start.go and ends in execute.go. run.go cancels runs without readers, suspension.go lets a run wait for
// people, and takeover.go continues a run in another process.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"answerd/internal/agent/admission"
	"answerd/internal/agent/budget"
	"answerd/internal/agent/definition"
	"answerd/internal/agent/delivery"
	"answerd/internal/agent/output"
	"answerd/internal/agent/prompt"
	"answerd/internal/agent/record"
	"answerd/internal/agent/recorded"
	"answerd/internal/agent/replay"
	"answerd/internal/agent/thread"
	"answerd/internal/agent/toolsearch"
	"answerd/internal/agent/usage"
	"answerd/internal/agent/webhook"
	"answerd/internal/agent/window"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
)

// Options configure an Agent. Model, Tools and Log are required.
type Options struct {
	Model llm.Model
	Tools Tools
	Log   event.Log

	// BasePath is the path that the API is served under; URLs of stored results begin with it. "" means the root.
	BasePath     string
	DefaultModel string // the model for requests that name none; see ReplaceModels
	// Agents are the named agents; the first one is the default. If the list is empty, New creates one agent from these
	// options. See ReplaceAgents.
	Agents []definition.Agent
	// Profiles lists the models that requests may name. If it is empty, any name is allowed, and
	// llm.AcceptsImages decides whether the model gets images.
	Profiles        map[string]llm.Profile
	ToolSearch      ToolSearch // when the model must search for tools; the zero value means never
	Prompt          *prompt.Prompt
	Hooks           *webhook.Client // nil means no hooks
	Rules           *auth.Rules     // who may use what; nil allows everything
	Budget          Budget          // the limits of every run; a request may lower them
	MaxHistory      int             // messages of history that are used; 0 means 16
	MaxTurns        int             // how many turns of a run may call tools; 0 means 10
	MaxOutputTokens int64           // of one model answer; 0 means that only the budget and the model's profile limit it
	MaxRuns         int             // how many runs and direct calls may be active at the same time; 0 means 512
	DisconnectGrace time.Duration   // how long a run continues without a reader; 0 means that it is cancelled at once
	InputTimeout    time.Duration   // how long a run waits for a person's answer; 0 means 15 min
	// Durable means that the log outlives this process. Other processes then take over runs that
	// cannot end here, and this process takes over runs of processes that died.
	Durable bool
	// ClaimDelay is how long this process waits after New before it first claims a run of another process. Without the
	// delay, a process that crashes shortly after every start would claim runs and interrupt them each time.
	ClaimDelay time.Duration
	// Retention is how long the log keeps a run's events, and Version is the version of answerd. An export of a run
	// names both. RecordModelRequests makes exports contain every request to the model.
	Retention           time.Duration
	Version             string
	RecordModelRequests bool
	// Repeat holds the recording that the runs repeat, in a rerun; nil otherwise.
	Repeat *recorded.Inputs
	// AuditArguments adds the arguments to the audit line of every tool call.
	AuditArguments bool
	// TraceUsers adds the user to spans. TraceContent adds questions, answers, arguments and results.
	TraceUsers, TraceContent bool

	// MaxRunsPerCaller and Rate limit the runs of one caller; 0 means no limit. New runs are refused while MemoryShort
	// returns true; a nil MemoryShort refuses none.
	MaxRunsPerCaller int
	Rate             admission.Rate
	MemoryShort      func() bool
	Memory           *admission.Memory // the memory that all runs together may use; nil means no limit

	// CallerBudgets bound what one caller may use per period, in all processes that share the log.
	CallerBudgets []usage.Limit
	// Deliveries POSTs the end of each run to other services; nil means that no service is informed. Drain also drains
	// it.
	Deliveries *delivery.Deliverer
	// CostClaim names a token claim; the metrics of tokens and cost are reported per value of that claim. "" means that
	// they are not divided.
	CostClaim string

	Logger *slog.Logger
	Tracer trace.Tracer
	Meter  metric.Meter
}

// Tools gives the agent its tools. *mcp.Client implements it for MCP servers and documents the methods. Package rerun
// implements it with the results that an export recorded.
type Tools interface {
	ToolsFor(ctx context.Context, caller auth.Identity) []catalog.Tool
	Tool(name string) (catalog.Tool, bool)
	NameOf(server, name string) string
	CheckArgs(tool string, args json.RawMessage) (json.RawMessage, error)
	Call(ctx context.Context, call mcp.Call) (*content.Result, error)
	Repeatable(tool string) bool

	Servers() []mcp.ServerStatus
	Unavailable(waited bool) []string
	InstructionsFor(ctx context.Context, caller auth.Identity, isUsed func(server string) bool) []mcp.Instructions
	Prompts(ctx context.Context, caller auth.Identity, server string) (mcp.PromptList, error)
	Prompt(ctx context.Context, caller auth.Identity, server, name string, args map[string]string) ([]mcp.PromptMessage, error)
	RefreshFor(ctx context.Context, caller auth.Identity, server string) error
	Ready() bool

	AwaitSignIn(ctx context.Context, call mcp.Call, action string) error
	Callback(ctx context.Context, query url.Values) (waiters []string, found bool, err error)
	SignOut(ctx context.Context, caller auth.Identity, server string) (bool, error)
}

// Reasons why a request does not become a run.
var (
	ErrDraining = errors.New("the service is shutting down")
	// ErrKeyReused means that the idempotency key was used with another body, ErrKeyElsewhere
	// that it was used at another path.
	ErrKeyReused    = errors.New("the idempotency key was used for another request")
	ErrKeyElsewhere = errors.New("the idempotency key was used at another path")
	// ErrUnknownServer means that Refresh, Prompts or SignOut was called for a server that is not configured.
	ErrUnknownServer = mcp.ErrUnknownServer
	// ErrForbidden means that the access rules allow this caller nothing at all, or not the requested model.
	ErrForbidden = errors.New("the rules do not allow it")
)

// Refusal tells the caller to retry later. Its Reason is one of the errors below.
type Refusal = admission.Refusal

// Reasons why the agent refuses a run or a direct call for now.
var (
	ErrOverloaded  = admission.ErrFull
	ErrMemoryShort = admission.ErrMemory
	ErrTooMany     = admission.ErrTooMany // this caller has too many active runs
	ErrTooFast     = admission.ErrTooFast
)

// InvalidError says which field of a request is invalid, and why.
type InvalidError struct {
	Pointer string // the field, as a JSON pointer (RFC 6901) into the native form of the request
	Detail  string // the reason, as text that the API returns
}

func (e *InvalidError) Error() string { return e.Pointer + ": " + e.Detail }

// errUnknownModel means that the service does not serve the requested model.
var errUnknownModel = &InvalidError{"/model", "not one of the models that are served"}

// ToolsUnavailableError refuses a question because no MCP server that has tools for it is connected.
type ToolsUnavailableError = admission.ToolsUnavailableError

// Agent owns this process's runs and their goroutines. Its methods may be called concurrently.
type Agent struct {
	Options
	metrics     metrics
	usage       *usage.Meter
	models      atomic.Pointer[servedModels]
	agents      atomic.Pointer[servedAgents]
	windowSizes window.Sizes // context windows, by model id, as endpoints stated them when they refused a prompt
	recorder    *record.Recorder

	stop context.CancelCauseFunc // ends all runs
	ctx  context.Context         // the parent of every run
	runs sync.WaitGroup          // runs and direct calls in progress

	accepting    context.Context // ends with StopAccepting, with mu held
	stopAccept   context.CancelFunc
	stopClaims   context.CancelFunc // ends the goroutines of claimLoop
	claiming     sync.WaitGroup     // the goroutines of claimLoop
	idleSignal   chan struct{}      // wakes Drain when a run or a direct call ends or a run is suspended; capacity 1
	handOverOnce sync.Once          // closes handingOver
	handingOver  chan struct{}      // closed when Drain hands runs over

	gate *admission.Gate

	mu          sync.Mutex      // protects the fields below and every run's grace timer
	active      map[string]*run // by id; a run is here before the log has it, until its terminal event is appended
	directCalls int             // direct calls (CallTool) in flight
	readers     map[string]int  // open readers in this process, by run id
	handedOver  bool            // handOverRuns has begun: no more runs may be registered
}

// loop holds the state of a run during its turns. Only the run's goroutine uses it, except that the goroutines of a
// turn's calls run concurrently; each of those writes only its own element of a slice.
type loop struct {
	agent   *Agent
	run     *run
	started time.Time // when the run began; after a takeover, computed from its age by the log's clock

	catalog     *toolCatalog       // the tools of MCP servers that the run may use
	askCount    int                // calls of the current turn that ask other agents and share the rest of the budget
	search      *toolsearch.Search // finds more tools for the model; nil if the model is offered all tools
	clientTools []llm.Tool         // tools that the API client executes; the model is offered them too
	askTools    []askTool          // tools that ask other agents; the model is offered them too
	offered     []llm.Tool         // all tools that the model is currently offered (updateOffered)

	instructions   string          // what the MCP servers say about their use, for the system prompt
	messages       []llm.Message   // the conversation: the system prompt, the history, the question, and the turns so far
	historyLen     int             // how many messages between the system prompt and the question are history
	requestCallIDs map[string]bool // ids of the calls that came with the request, in its history or its question
	callIDs        map[string]bool // ids of all calls in the conversation; a new call needs a different id
	profile        llm.Profile     // of the model that the request names
	window         *window.Window
	trimReported   bool // a budget event has said that the conversation was trimmed

	step      int // the number of the current or last step, from 1
	partCount int // how many text and reasoning parts the run has so far

	budget *budget.Budget
	// answerRefused means that the endpoint refused a prompt that fits the window: only prompt and answer together were
	// too long. Each later request then limits its answer to the tokens that the prompt leaves free.
	answerRefused    bool
	lastPromptTokens int64  // how many tokens the last prompt had; the next prompt has at least as many
	budgetSpent      bool   // a limit of the run's budget is reached and was not raised
	stopReason       string // the finish reason once a limit stops the run; "" until then
	// callerSpent is the caller's budget that is used up; nil if none is. It is atomic because the goroutines of calls
	// set it too. callerSpentReported means that a budget event has reported it.
	callerSpent         atomic.Pointer[usage.SpentError]
	callerSpentReported bool
	media               mediaBudget

	preferredModel string         // the model that answered last (llm.Request.Preferred)
	output         *output.Schema // the schema that the answer must match; nil means any text
	repairing      bool           // the answer violated the schema; the next turn corrects it and is the last one

	metadata     event.Metadata // the metadata of the final answer, filled in as the run proceeds
	metadataSize int            // how many bytes the calls occupy in metadata
	// fallbackCost is how much more the answers of fallbacks cost than they would at the price of the requested model.
	// It is negative if the fallbacks were cheaper.
	fallbackCost float64
	childSpent   event.Spent // what the child runs have used whose calls are in metadata; its Cost is nil if unknown

	replayed *replay.State // what other processes did in this run; nil if it began here
}

// run holds the state of a run that this process executes.
//
// When the run's context ends, its cause decides what happens next. After errRequested, errAbandoned or errShutdown the
// run ends: this process appends the terminal event. After errParked, errHandedOver or errTakenOver this process has
// relinquished the run: it only stops executing, and must not append any more events, since another process may already
// be appending. The first cause wins, so cancelling the context does not end a run that was relinquished before. For
// that case Cancel also stores the cancellation as an input in the log, where the next process finds it.
type run struct {
	event.Run
	account    usage.Account // the caller's account, to which tokens and cost are charged
	caller     auth.Identity // the user for whom the run acts; after a takeover it has no access token
	req        Request
	ctx        context.Context         // ends when the run is cancelled, relinquished or removed from Agent.active
	cancel     context.CancelCauseFunc // ends ctx
	out        *event.Writer           // appends the run's events until the run is relinquished
	threadTurn thread.Builder          // builds the run's turn of the thread from its events
	isBeside   bool                    // the thread had an active run when this one began, so this one's turn was not begun
	agent      *Agent
	suspension suspension
	clock      budget.Clock // measures and limits the run's time, without suspensions
	inbox      inbox
	job        event.Job              // nil if no other process can continue the run
	replayed   *replay.State          // what an earlier process did in this run; nil if there was none
	slot       *admission.Slot        // counts the run towards the limits of runs
	memory     *admission.Reservation // the memory that the run is charged for; part of slot
	textBytes  atomic.Int64           // how many bytes of text memory is charged for (reserveMemory)

	// The agent's mutex guards the fields below.
	graceTimer   *time.Timer // cancels the run for lack of readers; nil outside a grace period
	gracePeriods int         // how many grace periods have begun; identifies the current one
}

// modelReply holds the model's answer of one step.
type modelReply struct {
	text   string
	calls  []*call
	usage  event.Usage // zero if the provider reported none
	finish string      // the finish reason, such as stop, length or tool_calls

	extensions *llm.Extensions // the endpoint's own fields, which later requests to it repeat; nil if it sent none
}

// modelStream turns the parts of one model answer into events as they arrive.
type modelStream struct {
	*loop
	modelReply
	finalTurn    bool                     // the turn is the last one, so the model is offered no tools
	requestCount int                      // requests of this step so far
	usageSeen    bool                     // usage is set
	partEnd      event.Body               // the event that closes the open text or reasoning part; nil if no part is open
	partID       string                   // the id of the open part; "" if no part is open
	byIndex      map[int]*call            // the calls of the answer, by the endpoint's number for each call
	fence        output.Fence             // removes a code fence around the text, if the answer must be JSON
	output       *budget.Output           // what the model has written so far in this answer
	unparsed     map[int]*strings.Builder // arguments of calls that are not complete yet, by index
	addition     hookAddition             // from the hook pre_model_call
	uncounted    int                      // how many bytes of the answer run.reserveMemory does not count yet
}

// hookAddition is what the pre_model_call hook adds to the model requests of one step.
type hookAddition struct {
	Instructions string   `json:"instructions,omitempty"`
	Messages     []string `json:"messages,omitempty"`
}

// askTool is a tool with which the model asks another agent.
type askTool struct {
	llm.Tool
	agent string // the id of the asked agent
}

// mediaBudget limits the images and audio from tool results that a run sends to its model.
type mediaBudget struct {
	profile     llm.Profile    // the profile of the run's model
	budget      *budget.Budget // the run's budget, which counts media as bytes of results
	shownInTurn int            // images and sounds shown in this turn
	shownInRun  int            // base64 characters shown in this run
}

type jsonText = json.RawMessage

// addUsage adds used, tokens that the run itself has used, to the token counts in the answer's metadata.
func (l *loop) addUsage(used event.Usage) {
	l.metadata.Usage = l.metadata.Usage.Plus(used)
	requested := l.profile.Price.CostOf(used.InputTokens, used.OutputTokens)
	if answered := l.budget.CostOf(used); requested != nil && answered != nil {
		l.fallbackCost += *answered - *requested
	}
}

// countChild adds what a child run has used to childSpent and to the answer's metadata.
func (l *loop) countChild(spent event.Spent) {
	l.childSpent = l.childSpent.Plus(spent)
	l.metadata.Usage = l.metadata.Usage.Plus(spent.Usage)
}

// cost returns what the run and its child runs have cost together. It returns nil if a price or what a child has used
// is unknown, or if the run could not be prepared. l.metadata.Usage includes the children's tokens, so cost subtracts
// them before it applies the price of the run's own model: childSpent has their cost, at the prices of their models.
func (l *loop) cost() *float64 {
	if l.budget == nil {
		return nil
	}
	all, children := l.metadata.Usage, l.childSpent
	own := l.profile.Price.CostOf(all.InputTokens-children.Usage.InputTokens, all.OutputTokens-children.Usage.OutputTokens)
	if own != nil && l.fallbackCost != 0 {
		*own = math.Round((*own+l.fallbackCost)*1e12) / 1e12 // drops the rounding errors of the sum
	}
	return event.Spent{Cost: own}.Plus(children).Cost
}

// costOfUsage returns cost, except that it returns 0 if cost is nil, an unknown price, and usage is zero: no tokens
// cost nothing at any price.
func costOfUsage(usage event.Usage, cost *float64) *float64 {
	if cost == nil && usage == (event.Usage{}) {
		return new(float64)
	}
	return cost
}

// ToolsFor returns the tools that the access rules let caller use. It waits for servers that are still connecting. The
// caller of ToolsFor must not change the returned slice, which is shared.
func (a *Agent) ToolsFor(ctx context.Context, caller auth.Identity) []catalog.Tool {
	all := a.Tools.ToolsFor(ctx, caller)
	access := a.Rules.Of(caller)
	if access.AllowsEverything() {
		return all // the same slice, so that catalogFor recognizes it
	}
	allowed := make([]catalog.Tool, 0, len(all))
	for _, t := range all {
		if _, ok := access.AllowsTool(t.Server, t.Name); ok {
			allowed = append(allowed, t)
		}
	}
	return allowed
}

// MayUseModel reports whether the access rules let caller use model.
func (a *Agent) MayUseModel(caller auth.Identity, model string) bool {
	return a.Rules.Of(caller).AllowsModel(model)
}

// ServersFor returns the states of the servers that the access rules let caller use, in configuration order.
func (a *Agent) ServersFor(caller auth.Identity) []mcp.ServerStatus {
	access := a.Rules.Of(caller)
	return slices.DeleteFunc(a.Tools.Servers(), func(s mcp.ServerStatus) bool { return !access.AllowsServer(s.Name) })
}

// Refresh fetches the list of a server's tools again, as caller sees them. It returns ErrUnknownServer if the server
// does not exist or the access rules hide it from caller, and otherwise the error of the request to the server.
func (a *Agent) Refresh(ctx context.Context, caller auth.Identity, server string) error {
	if !a.Rules.Of(caller).AllowsServer(server) {
		return fmt.Errorf("refresh %.64q: %w", server, ErrUnknownServer)
	}
	return a.Tools.RefreshFor(ctx, caller, server)
}

// SignOut removes the tokens that caller granted for server. It returns ErrUnknownServer if the server does not exist,
// if caller may not use it, or if users do not sign in to it.
func (a *Agent) SignOut(ctx context.Context, caller auth.Identity, server string) error {
	if !a.Rules.Of(caller).AllowsServer(server) {
		return fmt.Errorf("sign out of %.64q: %w", server, ErrUnknownServer)
	}
	_, err := a.Tools.SignOut(ctx, caller, server)
	return err
}

// Prompts lists a server's prompts as caller sees them. It returns ErrUnknownServer if the server does not exist or
// caller may not use it.
func (a *Agent) Prompts(ctx context.Context, caller auth.Identity, server string) (mcp.PromptList, error) {
	if !a.Rules.Of(caller).AllowsServer(server) {
		return mcp.PromptList{}, fmt.Errorf("list the prompts of %.64q: %w", server, ErrUnknownServer)
	}
	return a.Tools.Prompts(ctx, caller, server)
}

// eventsSoFar yields the events that the log has of a run, in order. If the log fails, it yields the error and stops.
func (a *Agent) eventsSoFar(ctx context.Context, run string) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		for pos := int64(0); ; {
			page, err := a.Log.After(ctx, run, pos)
			if err != nil {
				yield(event.Event{}, fmt.Errorf("read the events of a run: %w", err))
				return
			}
			for _, e := range page.Events {
				pos = e.Seq
				if !yield(e, nil) {
					return
				}
			}
			if page.Ended || len(page.Events) == 0 {
				return
			}
		}
	}
}
