package demo

import (
	"fmt"
	"slices"
	"strings"
)

// maxRounds of calls are made for one question. Two are enough for what the planner
// can want; the third is for an agent that runs calls one at a time.
const maxRounds = 3

// standInNote ends every text that the stand-in says.
const standInNote = "(I am answerd's demo stand-in: rules over the words of your question, not a language model.)"

// respond decides what to say to a request: calls for what the question still lacks,
// else an answer made of the results. A call that was made is never made again with
// the same arguments, so neither a failure nor tool_choice "required" makes a loop.
func respond(r *chatRequest) *reply {
	textual := len(r.Tools) == 0 && r.choice != "none" && speaksText(r.Messages)
	var tools []tool
	if textual {
		tools = readTextTools(systemPrompt(r.Messages))
	}
	for _, t := range r.Tools {
		if r.choice != "none" && (r.onlyTool == "" || r.onlyTool == t.Function.Name) {
			tools = append(tools, readTool(t.Function.Name, t.Function.Description, t.Function.Parameters))
		}
	}
	all := exchanges(r.Messages, textual)
	x := &all[len(all)-1]
	p := newPlanner(tools)
	var mem memory
	for i := range all[:len(all)-1] {
		_, mem, _ = p.plan(&all[i], mem)
	}
	steps, _, lack := p.plan(x, mem)
	if r.choice == "required" && len(steps) == 0 && len(x.calls) == 0 {
		steps = p.atAnyPrice(x.question)
	}
	out := &reply{}
	if open := openSteps(steps, x); len(open) > 0 && x.rounds < maxRounds {
		if r.ParallelToolCalls != nil && !*r.ParallelToolCalls {
			open = open[:1]
		}
		out.calls = nameCalls(open, len(all), len(x.calls), x.question)
	} else {
		out.text = compose(x, r.choice, tools, lack, len(open) > 0)
	}
	out.account(r, textual)
	return out
}

// openSteps are the steps that were not made yet, each once.
func openSteps(steps []step, x *exchange) []step {
	var out []step
	seen := make(map[string]bool)
	for _, s := range steps {
		key := s.tool.name + "\x00" + s.json()
		if x.made(s.tool.name, canonical(s.json())) == nil && !seen[key] {
			seen[key] = true
			out = append(out, s)
		}
	}
	return out
}

// atAnyPrice is a call of the tool that fits the question best, however badly, with
// arguments that the schema allows.
func (p *planner) atAnyPrice(question string) []step {
	c := readClause(question)
	best, _ := p.choose(c)
	if best.tool == nil {
		return nil
	}
	for _, q := range best.tool.params {
		if slices.Contains(best.missing, q.name) {
			best.args[q.name] = q.fallback(c, 0)
		}
	}
	return []step{{best.tool, best.args}}
}

// nameCalls gives the calls ids that depend on the question and the place in the
// conversation only, and not on the system prompt with its date and time.
func nameCalls(steps []step, turn, made int, question string) []plannedCall {
	var out []plannedCall
	for i, s := range steps {
		id := digest("call_", fmt.Sprint(turn, made+i), question, s.tool.name, s.json())
		out = append(out, plannedCall{id, s.tool.name, s.json()})
	}
	return out
}

// account says the calls as text where that is the dialect, and adds id and usage.
func (r *reply) account(req *chatRequest, textual bool) {
	if textual && len(r.calls) > 0 {
		r.text, r.calls = writeTextCalls(r.calls), nil
	}
	prompt, said := req.toolWords, countWords(r.text)
	names := []string{r.text}
	for _, m := range req.Messages {
		prompt += countWords(string(m.Content))
	}
	for _, c := range r.calls {
		said += 1 + countWords(c.args)
		names = append(names, c.id)
	}
	r.id = digest("chatcmpl-", names...)
	r.usage = chatUsage{prompt, said, prompt + said}
}

// compose is the final text: a sentence for each result in call order, or what the
// stand-in can say without any.
func compose(x *exchange, choice string, tools []tool, lack *candidate, stopped bool) string {
	var lines []string
	failed := false
	for _, c := range x.calls {
		if !c.answered {
			continue
		}
		text := renderResult(c.result)
		if c.failed {
			failed = true
			text = fmt.Sprintf("The tool %s failed: %s", c.name, text)
		}
		if !slices.Contains(lines, text) {
			lines = append(lines, text)
		}
	}
	if failed {
		lines = append(lines, "I did not try a failed call again.")
	}
	if stopped {
		lines = append(lines, fmt.Sprintf("I stopped after %d rounds of calls.", maxRounds))
	}
	if len(x.calls) == 0 {
		lines = append(lines, withoutTools(choice, tools, lack))
	}
	return strings.Join(append(lines, standInNote), "\n\n")
}

// withoutTools is what to say when no tool was called.
func withoutTools(choice string, tools []tool, lack *candidate) string {
	switch {
	case lack != nil:
		return fmt.Sprintf("I would call %s, but the question does not say what to give for %s.", lack.tool.name, strings.Join(lack.missing, ", "))
	case choice == "none":
		return "Text only was asked for, so I called no tool, and I know nothing by myself."
	case len(tools) == 0:
		return "I was given no tools, and I know nothing by myself."
	}
	var names []string
	for _, t := range tools[:min(len(tools), 10)] {
		names = append(names, t.name)
	}
	return "I found no tool that fits this question, and I know nothing by myself. I was given: " + strings.Join(names, ", ") + "."
}
