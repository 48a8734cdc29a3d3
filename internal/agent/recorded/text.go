package recorded

// Texts that say in a recording why a call failed or a question was not answered. The run loop writes them into events.
// Package rerun reads them, because nothing else in events distinguishes these reasons from those of rules and hooks.
const (
	BudgetUsedUp    = "The run's budget is used up" // followed by the limit
	LimitOfTurn     = "Only "                       // followed by how many calls or agents one turn may have
	NoMoreCalls     = "No tool can be called any more in this run."
	RefusedByPerson = "A person refused this call."
	NotApproved     = "This call needs a person's approval, and " // followed by the reason
	ResultWithheld  = "The call was made, and a hook withheld its result"
	CallCancelled   = "The call was cancelled."
	Withdrawn       = "the question was withdrawn"
)
