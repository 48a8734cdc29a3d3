// Package usage counts what the model calls of runs use. It counts in metrics, by agent, model and a claim of the
// caller's token, and towards the budgets that each caller has per period.
//
//	m, err := usage.New(usage.Options{Claim: "tenant", Limits: limits, Store: log, Meter: meter})
//	account := m.AccountOf(caller) // kept with the run, also in another process
//	err = m.Check(ctx, account) // before a run: *SpentError if the caller has used up a budget
//	spent := m.Count(ctx, account, "support", "fast", tokens, cost) // after each model call
//
// Each model call is counted once, by the run that makes it. A child run counts its own calls, so its parent does not
// count them again, although they are part of the parent's answer and budget.
package usage

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/values"
)

// Limits on the label sets of each of the two metrics: how many values of the claim there may be, and how many
// combinations of agent, model and claim. Beyond these, Other replaces the claim, or the agent and the model. So there
// are at most maxSets + maxClaims + 2 sets.
const (
	maxClaims = 1000
	maxSets   = 480
	// maxValue is how long the value of a claim may be, in bytes.
	maxValue = 128
)

// Label values that replace others.
const (
	Other = "_other" // too many, or not from the configuration
	None  = "_none"  // the token has no such claim
)

// Options configure a Meter. Meter is required; if there are Limits, Store and Logger are too.
type Options struct {
	Claim  string  // the metrics have this claim's value as the label claim; "" means no such label
	Limits []Limit // for each caller
	Store  values.Store
	Meter  metric.Meter
	Logger *slog.Logger
}

// Account says to whom a run's use is charged. It is stored with the run.
type Account struct {
	Claim  string `json:"claim,omitempty"`  // the value of the claim Options.Claim; "" if the token has none
	Caller string `json:"caller,omitempty"` // a digest of Identity.Key; "" without Options.Limits
}

// Meter counts use. Its methods may be called concurrently.
type Meter struct {
	claim   string
	budgets *budgets // nil without Options.Limits
	tokens  metric.Int64Counter
	cost    metric.Float64Counter

	mu     sync.Mutex // protects the fields below
	claims map[string]bool
	sets   map[[3]string]metric.AddOption // by agent, model and claim
}

// New returns a Meter that has counted nothing.
func New(opts Options) (*Meter, error) {
	m := &Meter{claim: opts.Claim, claims: make(map[string]bool), sets: make(map[[3]string]metric.AddOption)}
	if len(opts.Limits) > 0 {
		m.budgets = &budgets{limits: opts.Limits, store: opts.Store, logger: opts.Logger, pending: make(map[string]*pendingUse)}
	}
	var tokensErr, costErr error
	m.tokens, tokensErr = opts.Meter.Int64Counter("answerd.tokens",
		metric.WithUnit("{token}"),
		metric.WithDescription("Tokens of prompts and answers, by agent and model, and by the claim of COST_CLAIM. "+
			"Each model call is counted once, by the run that made it: those of a child run under the child's agent, and not again for its parent."))
	m.cost, costErr = opts.Meter.Float64Counter("answerd.cost",
		metric.WithDescription("Cost of model calls in the currency of MODELS_FILE, by agent and model, and by the claim of COST_CLAIM. "+
			"A model without a price has no cost. Each model call is counted once, by the run that made it, and not again for the run's parent."))
	return m, errors.Join(tokensErr, costErr)
}

// AccountOf returns the account that caller's runs are charged to.
func (m *Meter) AccountOf(caller auth.Identity) (a Account) {
	if m.budgets != nil {
		a.Caller = values.NewKey("caller", caller.Key()).String()
	}
	if m.claim == "" {
		return a
	}
	a.Claim = caller.Claim(m.claim)
	if len(a.Claim) > maxValue {
		a.Claim = Other
	}
	return a
}

// LimitsCost reports whether one of the limits is on the cost.
func (m *Meter) LimitsCost() bool {
	return m.budgets != nil && slices.ContainsFunc(m.budgets.limits, func(l Limit) bool { return l.Name == "cost" })
}

// Check returns a *SpentError if the account's caller has used up a limit. It returns an error that wraps
// event.ErrUnavailable if the store does not answer, or if the use of too many callers waits to be stored.
func (m *Meter) Check(ctx context.Context, account Account) error {
	if m.budgets == nil {
		return nil
	}
	return m.budgets.check(ctx, account.Caller)
}

// Count counts a model call in the metrics and towards the limits. cost is nil if the model has no price. If the caller
// has now used up a limit, Count returns a *SpentError, and nil otherwise. Count waits until the use is stored, even
// after ctx has ended, but not longer than storeTimeout. Use that could not be stored is stored with the next use or by
// Flush.
func (m *Meter) Count(ctx context.Context, account Account, agent, model string, used event.Usage, cost *float64) *SpentError {
	use := amounts{Input: used.InputTokens, Output: used.OutputTokens, Total: used.TotalTokens}
	labels := m.labels(agent, model, account.Claim)
	m.tokens.Add(ctx, used.TotalTokens, labels)
	if cost != nil {
		use.Cost = *cost
		m.cost.Add(ctx, *cost, labels)
	}
	if m.budgets == nil || account.Caller == "" { // a run that began before limits were configured has no Caller
		return nil
	}
	return m.budgets.charge(ctx, account.Caller, use)
}

// Flush tries once more to store use that could not be stored before. It stops when ctx ends.
func (m *Meter) Flush(ctx context.Context) {
	if m.budgets != nil {
		m.budgets.flush(ctx)
	}
}

// labels returns a measurement's labels. After maxClaims different values of the claim, new values become Other. After
// maxSets different combinations, new combinations get Other as agent and model.
func (m *Meter) labels(agent, model, claim string) metric.AddOption {
	m.mu.Lock()
	defer m.mu.Unlock()
	claim = m.claimLabelLocked(claim)
	key := [3]string{agent, model, claim}
	if m.sets[key] == nil && len(m.sets) >= maxSets {
		key = [3]string{Other, Other, claim}
	}
	if m.sets[key] == nil {
		attributes := []attribute.KeyValue{attribute.String("agent", key[0]), attribute.String("model", key[1])}
		if m.claim != "" {
			attributes = append(attributes, attribute.String("claim", claim))
		}
		m.sets[key] = metric.WithAttributeSet(attribute.NewSet(attributes...))
	}
	return m.sets[key]
}

// claimLabelLocked returns the label for a value of the claim: the value itself, None for "", or Other for a new value
// after maxClaims. It adds a new value to m.claims. If the metrics have no such label, it returns "". m.mu must be
// held.
func (m *Meter) claimLabelLocked(value string) string {
	switch {
	case m.claim == "":
		return ""
	case value == "":
		return None
	case m.claims[value]:
		return value
	case len(m.claims) >= maxClaims:
		return Other
	}
	m.claims[value] = true
	return value
}
