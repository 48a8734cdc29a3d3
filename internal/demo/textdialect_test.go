package demo

import (
	"strings"
	"testing"
)

const dialectHead = "You can call tools. Write\nTOOL: name\nPARAMETERS: {json}\n\nTools:\n"

// Two ways in which prompts list tools: with the schema, and as seed 001 does it.
var dialectPrompts = map[string]string{
	"schema": dialectHead + "- calculate: Computes an arithmetic expression.\n" +
		`{"type":"object","properties":{"expression":{"type":"string"}},"required":["expression"]}` +
		"\n- current_time: Tells the current time in a zone.\n" + `  Parameters: {"type":"object","properties":{"time_zone":{"type":"string"}}}`,
	"list": dialectHead + "- calculate: Computes an arithmetic expression.\n  Parameters:\n    - expression (required): what to compute\n" +
		"- current_time: Tells the current time in a zone.\n  Parameters:\n    - time_zone (optional): IANA zone\n",
}

// S1.1
func TestTextDialect(t *testing.T) {
	for name, prompt := range dialectPrompts {
		messages := append([]chatMessage{{Role: "system", Content: chatContent(prompt)}}, conversation("What time is it in Rome and what is 2+2?")...)
		first := ask(messages, nil)
		want := "TOOL: current_time\nPARAMETERS: {\"time_zone\":\"Europe/Rome\"}\n\nTOOL: calculate\nPARAMETERS: {\"expression\":\"2+2\"}"
		if first.text != want || len(first.calls) > 0 {
			t.Errorf("%s: %q", name, first.text)
			continue
		}
		messages = append(messages, chatMessage{Role: "assistant", Content: chatContent(first.text)},
			chatMessage{Role: "user", Content: "TOOL RESULT: current_time\nIt is ten.\n\nTOOL ERROR: calculate\nit is closed"})
		last := ask(messages, nil)
		if !strings.HasPrefix(last.text, "It is ten.\n\nThe tool calculate failed: it is closed\n\n") {
			t.Errorf("%s: %q", name, last.text)
		}
	}
}
