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
// Start returns as soon as the log has the run's first event. From then on the run is independent
// of any connection. It ends with its answer, its failure, Cancel, or after Options.DisconnectGrace
// without a reader. It gets exactly one terminal event, even after a panic.
//
// All calls of a turn run at the same time, and their results go back to the model in call order. A
// failed call becomes a message to the model, and the run continues.
//
// An Agent owns the runs of its process. The type run has what this process needs to execute a run: its identity,
// its context and the writer of its events. The type loop has the state of the run's turns, and toolExecution that
// of one tool call. replay.State is what other processes did in the run before; it is nil for most runs.
//
// The agent stores what it is about to announce before it announces it: a question before a person is asked, a
// note before a call is sent, the events so far before a hook is asked. Otherwise a process that takes over the
// run would not know what was announced, and would announce it again.
//
// Start reading with loop.go, which has the turns of a run, and toolcall.go, which has the steps of
// a tool call. start.go has how a run begins, execute.go how it ends, run.go when it is cancelled for lack of
// readers, suspension.go how it waits for people, and takeover.go how it continues in another process.
package agent

import (
	"cmp"
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

	// BasePath precedes the paths of the API in the URLs of results; "" if the API is at the root.
	BasePath     string
	DefaultModel string // the model of requests that name no model; see ReplaceModels
	// Agents are the named agents; the first one is the default. If there are none, one agent has the
	// settings of these options; see ReplaceAgents.
	Agents []definition.Agent
	// Profiles lists the models that requests may name. If it is empty, any name is allowed, and
	// llm.AcceptsImages decides whether the model gets images.
	Profiles        map[string]llm.Profile
	ToolSearch      ToolSearch // when the model must search for tools; the zero value means never
	Prompt          *prompt.Prompt
	Hooks           *webhook.Client // nil means no hooks
	Rules           *auth.Rules     // who may use what; nil allows everything
	Budget          Budget          // of every run; requests may lower it
	MaxHistory      int             // messages of history that are used; 0 means 16
	MaxTurns        int             // model turns with tools; 0 means 10
	MaxOutputTokens int64           // of one model answer; 0 means that only the budget and the model's profile limit it
	MaxRuns         int             // runs and direct calls at the same time; 0 means 512
	DisconnectGrace time.Duration   // how long a run continues without a reader; 0 means that it is cancelled at once
	InputTimeout    time.Duration   // how long a run waits for a person's answer; 0 means 15 min
	// Durable means that the log outlives this process. Other processes then take over runs that
	// cannot end here, and this process takes over runs of processes that died.
	Durable bool
	// ClaimDelay is the time between New and the first claim of another process's run. Without it, a process
	// that dies shortly after each start would claim runs each time and interrupt them.
	ClaimDelay time.Duration
	// Retention is how long the log keeps the events of a run, and Version the version of answerd. Both appear in
	// the exports of runs. RecordModelRequests adds every request to the model to the exports.
	Retention           time.Duration
	Version             string
	RecordModelRequests bool
	// Repeat makes the runs repeat recorded ones; nil for runs that are not executed again.
	Repeat *recorded.Inputs
	// AuditArguments adds the arguments to the audit line of every tool call.
	AuditArguments bool
	// TraceUsers adds the caller to spans, TraceContent the questions, answers, arguments and results.
	TraceUsers, TraceContent bool

	// MaxRunsPerCaller and Rate limit the runs of one caller; 0 means no limit. While
	// MemoryShort returns true, new runs are refused; nil means never.
	MaxRunsPerCaller int
	Rate             admission.Rate
	MemoryShort      func() bool
	Memory           *admission.Memory // what all runs together may hold; nil means any amount

	// CallerBudgets bound what one caller may use per period, in all processes that share the log.
	CallerBudgets []usage.Limit
	// Deliveries sends other services a POST when a run has ended; nil means none. Drain drains it too.
	Deliveries *delivery.Deliverer
	// CostClaim names the claim of callers' tokens by which the metrics of tokens and cost are divided; "" means none.
	CostClaim string

	Logger *slog.Logger
	Tracer trace.Tracer
	Meter  metric.Meter
}

// Tools are the tools that an agent calls. *mcp.Client implements it for MCP servers and describes the methods.
// Package rerun implements it with the recorded results of an export.
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
	Prompts(ctx context.Context, caller auth.Identity, server string) ([]mcp.Prompt, error)
	Prompt(ctx context.Context, caller auth.Identity, server, name string, args map[string]string) ([]mcp.PromptMessage, error)
	RefreshFor(ctx context.Context, caller auth.Identity, server string) error
	Ready() bool

	AwaitSignIn(ctx context.Context, call mcp.Call, action string) error
	Callback(ctx context.Context, query url.Values) (waiters []string, found bool, err error)
	SignOut(ctx context.Context, caller auth.Identity, server string) (bool, error)
}

// Reasons for which a request does not become a run.
var (
	ErrDraining = errors.New("the service is shutting down")
	// ErrKeyReused means that the idempotency key was used with another body, ErrKeyElsewhere
	// that it was used at another path.
	ErrKeyReused    = errors.New("the idempotency key was used for another request")
	ErrKeyElsewhere = errors.New("the idempotency key was used at another path")
	// ErrUnknownServer means that Refresh, Prompts or SignOut was called for a server that is not configured.
	ErrUnknownServer = mcp.ErrUnknownServer
	// ErrForbidden means that the rules do not let the caller use anything, or not the requested model.
	ErrForbidden = errors.New("the rules do not allow it")
)

// Refusal asks the caller to retry later. Its Reason is one of the errors below.
type Refusal = admission.Refusal

// Reasons for which a run or a direct call is refused.
var (
	ErrOverloaded  = admission.ErrFull
	ErrMemoryShort = admission.ErrMemory
	ErrTooMany     = admission.ErrTooMany // of this caller
	ErrTooFast     = admission.ErrTooFast
)

// InvalidError names the invalid field of a request, and the reason.
type InvalidError struct {
	Pointer string // the field, as a JSON pointer (RFC 6901) into the native request
	Detail  string // for the caller
}

func (e *InvalidError) Error() string { return e.Pointer + ": " + e.Detail }

// ToolsUnavailableError refuses a question whose tools no connected server has.
type ToolsUnavailableError = admission.ToolsUnavailableError

// Agent owns every run and its goroutine. Its methods may be called concurrently.
type Agent struct {
	Options
	metrics     metrics
	usage       *usage.Meter
	models      atomic.Pointer[servedModels]
	agents      atomic.Pointer[servedAgents]
	windowSizes window.Sizes // context windows that model endpoints named when they refused a prompt, by model id
	recorder    *record.Recorder

	stop context.CancelCauseFunc // ends all runs
	ctx  context.Context         // the parent of every run
	runs sync.WaitGroup          // runs and direct calls in progress

	accepting    context.Context // ends with StopAccepting
	stopAccept   context.CancelFunc
	stopClaims   context.CancelFunc // ends the goroutines of claimLoop
	claiming     sync.WaitGroup     // the goroutines of claimLoop
	idleSignal   chan struct{}      // wakes Drain: a run or a direct call has ended, or a run was suspended; capacity 1
	handOverOnce sync.Once          // closes handingOver
	handingOver  chan struct{}      // closed when Drain hands runs over

	gate *admission.Gate

	mu          sync.Mutex      // protects the fields below and the grace timer of every run
	active      map[string]*run // by id: from before the log has the run until its terminal event is appended
	directCalls int             // direct calls (CallTool) in flight
	readers     map[string]int  // open readers in this process, by run id
	draining    bool            // StopAccepting was called
	handedOver  bool            // handOverRuns has begun: no run may be registered any more
}

// loop holds the state of one run during its turns. Only the run's goroutine uses it. The calls
// of a turn run concurrently, but each writes only its own element of a slice.
type loop struct {
	agent   *Agent
	run     *run
	started time.Time // of the run; shifted by its age if another process began it

	catalog     *toolCatalog            // the servers' tools that the run may use
	tools       map[string]catalog.Tool // tools that the run may call, by the name that the model uses
	askCount    int                     // calls of the current turn that ask other agents, and share the rest of the budget
	search      *toolsearch.Search      // finds more tools for the model; nil if the model is offered all tools
	clientTools []llm.Tool              // tools that the caller executes; the model is offered them too
	askTools    []askTool               // tools that ask other agents; the model is offered them too
	offered     []llm.Tool              // all tools that the model is offered at present (updateOffered)

	instructions   string          // of the servers, as a part of the system prompt
	messages       []llm.Message   // the conversation: the system prompt, the history, the question, and the turns so far
	historyLen     int             // how many messages between the system prompt and the question are history
	requestCallIDs map[string]bool // ids of the calls in the history and the question
	callIDs        map[string]bool // ids of all calls in the conversation; a new call must have another id
	profile        llm.Profile     // of the model that the request names
	window         *window.Window
	trimReported   bool // an event has informed readers that the conversation was trimmed

	step      int // the number of the current or last step, from 1
	partCount int // text and reasoning parts so far

	budget *budget.Budget
	// answerRefused means that the endpoint refused a prompt which is smaller than the window: prompt and answer
	// together were too long. Each later request limits its answer to the tokens that the prompt leaves free.
	answerRefused    bool
	lastPromptTokens int64  // tokens of the last prompt; the next one has at least as many
	budgetSpent      bool   // a limit of the run is reached and was not raised
	stopReason       string // the finish reason once a limit stops the run; "" until then
	// callerSpent is the budget of the caller that is used up; nil if none is. Goroutines of calls set it
	// too. callerSpentReported means that an event has informed readers.
	callerSpent         atomic.Pointer[usage.SpentError]
	callerSpentReported bool
	media               mediaBudget

	preferredModel string         // the model that answered last (llm.Request.Preferred)
	output         *output.Schema // of the answer; nil means any text
	repairing      bool           // the answer violated the schema: the next turn, which is the last, corrects it

	metadata     event.Metadata // of the final answer, as far as the run has come
	metadataSize int            // bytes of the calls in metadata
	// fallbackCost is what the calls that fallbacks have answered cost more than at the price of the requested model.
	fallbackCost float64
	childSpent   *event.Spent // what the child runs of the calls in metadata have used; nil if there are none

	replayed *replay.State // what other processes did in this run; nil if it began here
}

// run holds the state of a run that this process executes.
//
// The cause of its context decides what follows when the context ends. After causes such as errRequested,
// errAbandoned or errShutdown the run ends: this process appends its terminal event. After errParked, errHandedOver
// and errTakenOver the run was relinquished: only its execution here ends, and this process must not append to it
// any more, since another process may be writing already. Only the first cause counts. So a cancellation does not
// end a run that was relinquished before, and Cancel also stores the cancellation as an input for the next process.
type run struct {
	event.Run
	account    usage.Account // the caller's account, to which tokens and cost are charged
	caller     auth.Identity // on whose behalf the run acts; without their token after a takeover
	req        Request
	ctx        context.Context         // ends when the run is cancelled, relinquished or removed
	cancel     context.CancelCauseFunc // ends ctx
	out        *event.Writer           // appends the run's events until the run is relinquished
	threadTurn thread.Builder          // collects the run's events into its turn of the thread
	isBeside   bool                    // another run of the thread was active when this one began, so its turn was not begun
	agent      *Agent
	suspension suspension
	clock      budget.Clock // measures and limits the run's time, without suspensions
	inbox      inbox
	job        event.Job              // nil if no other process could continue the run
	replayed   *replay.State          // nil unless another process executed the run before
	slot       *admission.Slot        // counts the run towards the limits of runs
	memory     *admission.Reservation // counts the run's memory; part of slot
	textBytes  atomic.Int64           // bytes of text that memory counts (reserveMemory)

	// The agent's mutex guards the fields below.
	graceTimer   *time.Timer // cancels the run for lack of readers; nil outside of a grace period
	gracePeriods int         // how many grace periods have begun; the number of the present one
}

// modelReply holds the model's answer of one step.
type modelReply struct {
	text   string
	calls  []*call
	usage  event.Usage // zero if the provider reported none
	finish string      // the finish reason, such as stop, length or tool_calls

	extensions *llm.Extensions // for the next requests to the same endpoint; nil if it sent none
}

// modelStream turns the parts of one model answer into events.
type modelStream struct {
	*loop
	modelReply
	finalTurn    bool                     // the turn is the last one, so the model is offered no tools
	requestCount int                      // requests of this step so far
	usageSeen    bool                     // usage is set
	partEnd      event.Body               // the event that closes the open text or reasoning part; nil if no part is open
	partID       string                   // of the open part; "" if no part is open
	byIndex      map[int]*call            // by the index that the endpoint gave the call
	fence        output.Fence             // removes a code fence around the text, if the answer must be JSON
	output       *budget.Output           // what the model has written so far in this answer
	unparsed     map[int]*strings.Builder // arguments of calls that are not complete yet, by index
	addition     hookAddition             // from the hook pre_model_call
	uncounted    int                      // bytes of the answer that are not counted with run.reserveMemory yet
}

// hookAddition is what the hook pre_model_call adds to the requests of one step.
type hookAddition struct {
	Instructions string   `json:"instructions,omitempty"`
	Messages     []string `json:"messages,omitempty"`
}

// askTool is a tool that asks another agent.
type askTool struct {
	llm.Tool
	agent string // the id of the asked agent
}

// mediaBudget bounds the images and audio of results that a run sends to its model.
type mediaBudget struct {
	profile     llm.Profile    // of the model
	budget      *budget.Budget // of the run
	shownInTurn int            // images and sounds shown in this turn
	shownInRun  int            // characters of base64 shown in this run
}

type jsonText = json.RawMessage

// addUsage adds tokens that the run itself has used to the metadata of the answer.
func (l *loop) addUsage(used event.Usage) {
	l.metadata.Usage = l.metadata.Usage.Plus(used)
	asked := l.profile.Price.CostOf(used.InputTokens, used.OutputTokens)
	if answered := l.budget.CostOf(used); asked != nil && answered != nil {
		l.fallbackCost += *answered - *asked
	}
}

// usePriceOf makes the run pay the price of the model that answered, which may be a fallback of the one that the request
// names. If no price of the fallback is known, the other one applies.
func (l *loop) usePriceOf(answered string) {
	price := l.profile.Price
	if answered != l.run.req.Model {
		price = cmp.Or(l.agent.priceOf(answered), price)
	}
	l.budget.SetPrice(price)
}

// countChild adds what a child run has used to childSpent and to the metadata of the answer.
func (l *loop) countChild(spent event.Spent) {
	sum := spent
	if l.childSpent != nil {
		sum = l.childSpent.Plus(spent)
	}
	l.childSpent = &sum
	l.metadata.Usage = l.metadata.Usage.Plus(spent.Usage)
}

// cost returns what the run and its children have cost, or nil if a price is unknown, or what a child has used. The
// run's own tokens are priced here. The cost of the children is in childSpent, since their models may have other
// prices.
func (l *loop) cost() *float64 {
	all, children := l.metadata.Usage, event.Spent{Cost: new(float64)}
	if l.childSpent != nil {
		children = *l.childSpent
	}
	own := l.profile.Price.CostOf(all.InputTokens-children.Usage.InputTokens, all.OutputTokens-children.Usage.OutputTokens)
	if own != nil && l.fallbackCost != 0 {
		*own = math.Round((*own+l.fallbackCost)*1e12) / 1e12
	}
	return event.Spent{Cost: own}.Plus(children).Cost
}

// costOfUsage returns the cost of a usage, or 0 if no tokens were used: that has no cost although the price is unknown.
func costOfUsage(usage event.Usage, cost *float64) *float64 {
	if cost == nil && usage == (event.Usage{}) {
		return new(float64)
	}
	return cost
}

// ToolsFor returns the tools that the rules let a caller use. It waits for servers that are being connected. The
// slice is shared: do not change it.
func (a *Agent) ToolsFor(ctx context.Context, caller auth.Identity) []catalog.Tool {
	all := a.Tools.ToolsFor(ctx, caller)
	access := a.Rules.Of(caller)
	if access.AllowsEverything() {
		return all // the same slice, so that toolCatalogCache recognizes it
	}
	allowed := make([]catalog.Tool, 0, len(all))
	for _, t := range all {
		if _, ok := access.AllowsTool(t.Server, t.Name); ok {
			allowed = append(allowed, t)
		}
	}
	return allowed
}

// ServersFor returns the states of the servers that the rules let a caller use, in the configuration's order.
func (a *Agent) ServersFor(caller auth.Identity) []mcp.ServerStatus {
	access := a.Rules.Of(caller)
	return slices.DeleteFunc(a.Tools.Servers(), func(s mcp.ServerStatus) bool { return !access.AllowsServer(s.Name) })
}

// MayUseModel reports whether the rules let a caller use a model.
func (a *Agent) MayUseModel(caller auth.Identity, model string) bool {
	return a.Rules.Of(caller).AllowsModel(model)
}

// Refresh lists the tools of a server again, for a caller. It returns ErrUnknownServer, even if
// the server exists but the caller may not use it, or the error of the listing.
func (a *Agent) Refresh(ctx context.Context, caller auth.Identity, server string) error {
	if !a.Rules.Of(caller).AllowsServer(server) {
		return fmt.Errorf("refresh %.64q: %w", server, ErrUnknownServer)
	}
	return a.Tools.RefreshFor(ctx, caller, server)
}

// SignOut removes the tokens that a caller has granted for a server. It returns ErrUnknownServer if the server
// does not exist, if the caller may not use it, or if callers do not sign in to it.
func (a *Agent) SignOut(ctx context.Context, caller auth.Identity, server string) error {
	if !a.Rules.Of(caller).AllowsServer(server) {
		return fmt.Errorf("sign out of %.64q: %w", server, ErrUnknownServer)
	}
	_, err := a.Tools.SignOut(ctx, caller, server)
	return err
}

// Prompts lists the prompts of a server, for a caller. It returns ErrUnknownServer if the server does not exist or
// the caller may not use it.
func (a *Agent) Prompts(ctx context.Context, caller auth.Identity, server string) ([]mcp.Prompt, error) {
	if !a.Rules.Of(caller).AllowsServer(server) {
		return nil, fmt.Errorf("list the prompts of %.64q: %w", server, ErrUnknownServer)
	}
	return a.Tools.Prompts(ctx, caller, server)
}

// eventsSoFar yields the events that a run has now, in order. After an error of the log, which it yields, it stops.
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

// allEvents reads all events of a run so far.
func (a *Agent) allEvents(ctx context.Context, id string) (events []event.Event, _ error) {
	for e, err := range a.eventsSoFar(ctx, id) {
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}
