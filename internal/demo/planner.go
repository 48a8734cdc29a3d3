package demo

import (
	"maps"
	"regexp"
	"strings"
)

// planner decides which calls a question asks for. It has no state of its own: what
// was asked before is in the conversation, which it reads again each time, so the
// same conversation always gives the same plan.
type planner struct {
	tools []tool
	scale *wordScale
}

// newPlanner weighs the tools' words against each other once per request.
func newPlanner(tools []tool) *planner { return &planner{tools, newWordScale(tools)} }

// step is one call of a plan.
type step struct {
	tool *tool
	args map[string]any
}

// json is the arguments with sorted keys: equal arguments give equal texts.
func (s step) json() string { return string(encode(s.args)) }

// memory is what a follow-up may refer to.
type memory struct {
	step   *step
	number string // what the last call came to; "" while that is not known
}

// plan is the calls for the exchange's question in order, those already made
// included. A clause that needs the number of a call without a result yet gives
// none; it does so in the round after. lack is what the best tool misses where a
// clause would otherwise have had one.
func (p *planner) plan(x *exchange, mem memory) (steps []step, after memory, lack *candidate) {
	for _, c := range splitQuestion(x.question) {
		s, missed := p.interpret(c, mem)
		if s == nil {
			if lack == nil {
				lack = missed
			}
			continue
		}
		steps, mem = append(steps, *s), memory{step: s}
		if made := x.made(s.tool.name, s.json()); made != nil && made.answered && !made.failed {
			mem.number = lastNumber(renderResult(made.result))
		}
	}
	if mem.number == "" {
		mem.number = lastNumber(x.text)
	}
	return steps, mem, lack
}

// interpret is the call that one clause asks for, or nil.
func (p *planner) interpret(c clause, mem memory) (*step, *candidate) {
	if c.tail != "" && mem.step != nil {
		return p.goOn(c.tail, mem), nil
	}
	if q := c.quantity; q != nil && q.value == "" {
		if mem.number == "" {
			return nil, nil
		}
		with := *q
		with.value = mem.number
		c.quantity = &with
	}
	best, ok := p.choose(c)
	if ok {
		return &step{best.tool, best.args}, nil
	}
	if mem.step != nil {
		if s := p.vary(*mem.step, c); s != nil {
			return s, nil
		}
	}
	if best.tool != nil && best.words >= threshold && len(best.missing) > 0 {
		return nil, &best
	}
	return nil, nil
}

// goOn continues a calculation: by its expression if the last call had one, else by
// the number that the last call came to.
func (p *planner) goOn(tail string, mem memory) *step {
	if param, ok := mem.step.tool.param(meansExpression); ok {
		if old, _ := mem.step.args[param.name].(string); old != "" {
			args := maps.Clone(mem.step.args)
			args[param.name] = "(" + old + ") " + tail
			return &step{mem.step.tool, args}
		}
	}
	if mem.number == "" {
		return nil
	}
	c := readClause(mem.number + " " + tail)
	if best, ok := p.choose(c); ok {
		return &step{best.tool, best.args}
	}
	return nil
}

// unitAlone is the end of "and in miles?".
var unitAlone = regexp.MustCompile(`(?i)\b(?:in|to|into)\s+(` + unitPattern + `)\s*[?.!]*$`)

// amountAlone is the end of "and 20 miles?" or "and 20?".
var amountAlone = regexp.MustCompile(`(?i)(` + numberPattern + `)\s*(` + unitPattern + `)?\s*[?.!]*$`)

// vary is the last call with what the clause changes about it: another place, id,
// amount or unit, or for "what about …" another subject. It is nil if nothing changes.
func (p *planner) vary(last step, c clause) *step {
	if !c.leads && len(strings.Fields(c.text)) > 4 {
		return nil
	}
	args := maps.Clone(last.args)
	changed := false
	set := func(name string, v any) {
		args[name], changed = v, true
	}
	f := fill(last.tool, c)
	for _, q := range last.tool.params {
		v, found := f.args[q.name]
		switch q.means {
		case meansZone, meansPlace:
			if found && c.place != nil {
				set(q.name, v)
			}
		case meansID, meansExpression, meansDate, meansEmail, meansURL:
			if found {
				set(q.name, v)
			}
		case meansQuery:
			if c.leads && !changed && len(c.stems) > 0 {
				set(q.name, c.subject())
			}
		}
	}
	if last.tool.converts() {
		last.tool.varyUnits(c.text, set)
	}
	if !changed {
		return nil
	}
	return &step{last.tool, args}
}

// varyUnits sees "and in miles?" and "and 20 miles?" after a conversion.
func (t *tool) varyUnits(text string, set func(string, any)) {
	amount, _ := t.param(meansAmount)
	from, _ := t.param(meansFrom)
	to, _ := t.param(meansTo)
	if m := unitAlone.FindStringSubmatch(text); m != nil {
		if us := findUnits(knownUnit(m[1])); len(us) > 0 {
			set(to.name, us[0].symbol)
		}
		text = strings.TrimSuffix(text, m[0])
	}
	if m := amountAlone.FindStringSubmatch(text); m != nil {
		if v, ok := amount.parse(m[1]); ok {
			set(amount.name, v)
		}
		if us := findUnits(knownUnit(m[2])); len(us) > 0 {
			set(from.name, us[0].symbol)
		}
	}
}

// bracketed is a note, such as the date of an exchange rate.
var bracketed = regexp.MustCompile(`\([^()]*\)`)

// lastNumber is the last number of a text, or "". What stands in brackets is a note.
func lastNumber(text string) string {
	all := numberWord.FindAllString(bracketed.ReplaceAllString(text, ""), -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}
