package event

// Type returns the name of the event on the wire, as in api/openapi.yaml.
func (Start) Type() Type               { return "start" }
func (StepStart) Type() Type           { return "step_start" }
func (StepEnd) Type() Type             { return "step_end" }
func (StepReset) Type() Type           { return "step_reset" }
func (ReasoningStart) Type() Type      { return "reasoning_start" }
func (ReasoningDelta) Type() Type      { return "reasoning_delta" }
func (ReasoningEnd) Type() Type        { return "reasoning_end" }
func (TextStart) Type() Type           { return "text_start" }
func (TextDelta) Type() Type           { return "text_delta" }
func (TextEnd) Type() Type             { return "text_end" }
func (ToolCallStart) Type() Type       { return "tool_call_start" }
func (ToolCallArgs) Type() Type        { return "tool_call_args" }
func (ToolCall) Type() Type            { return "tool_call" }
func (ApprovalRequired) Type() Type    { return "approval_required" }
func (ApprovalResolved) Type() Type    { return "approval_resolved" }
func (Elicitation) Type() Type         { return "elicitation" }
func (ElicitationResolved) Type() Type { return "elicitation_resolved" }
func (ToolProgress) Type() Type        { return "tool_progress" }
func (LogMessage) Type() Type          { return "log" }
func (ToolResult) Type() Type          { return "tool_result" }
func (ToolError) Type() Type           { return "tool_error" }
func (Budget) Type() Type              { return "budget" }
func (BudgetRequired) Type() Type      { return "budget_required" }
func (BudgetResolved) Type() Type      { return "budget_resolved" }
func (Suspended) Type() Type           { return "suspended" }
func (FinalAnswer) Type() Type         { return "final_answer" }
func (RunError) Type() Type            { return "run_error" }
func (Cancelled) Type() Type           { return "cancelled" }
func (u Unknown) Type() Type           { return u.kind }

// The method isBody closes the set of types that implement Body.

func (Start) isBody()               {}
func (StepStart) isBody()           {}
func (StepEnd) isBody()             {}
func (StepReset) isBody()           {}
func (ReasoningStart) isBody()      {}
func (ReasoningDelta) isBody()      {}
func (ReasoningEnd) isBody()        {}
func (TextStart) isBody()           {}
func (TextDelta) isBody()           {}
func (TextEnd) isBody()             {}
func (ToolCallStart) isBody()       {}
func (ToolCallArgs) isBody()        {}
func (ToolCall) isBody()            {}
func (ApprovalRequired) isBody()    {}
func (ApprovalResolved) isBody()    {}
func (Elicitation) isBody()         {}
func (ElicitationResolved) isBody() {}
func (ToolProgress) isBody()        {}
func (LogMessage) isBody()          {}
func (ToolResult) isBody()          {}
func (ToolError) isBody()           {}
func (Budget) isBody()              {}
func (BudgetRequired) isBody()      {}
func (BudgetResolved) isBody()      {}
func (Suspended) isBody()           {}
func (FinalAnswer) isBody()         {}
func (RunError) isBody()            {}
func (Cancelled) isBody()           {}
func (Unknown) isBody()             {}

// Types returns all types of events, in the order in which a run may have them.
func Types() []Type {
	types := make([]Type, len(decoders))
	for i, d := range decoders {
		types[i] = d.typ
	}
	return types
}
