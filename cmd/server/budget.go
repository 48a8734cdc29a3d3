package main

import "answerd/internal/agent"

// budget is the operator's limits of every run.
func (c *config) budget() agent.Budget {
	return agent.Budget{
		ToolCalls: c.BudgetToolCalls, InputTokens: c.BudgetInputTokens, OutputTokens: c.BudgetOutputTokens,
		TotalTokens: c.BudgetTotalTokens, Seconds: c.BudgetSeconds, ResultBytes: int64(c.BudgetResultBytes), Cost: c.BudgetCost,
	}
}

// inRange reports whether a number is 0 to limit; NaN is not.
func inRange(n, limit float64) bool { return n >= 0 && n <= limit }
