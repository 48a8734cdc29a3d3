package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// script describes the steps to one answer. Each request has it as the name of the model, so that the model, the floor
// and the load know it without any state.
type script struct {
	Tokens  int // tokens of the final answer
	Rounds  int // rounds of tool calls before it
	Calls   int // calls in each round, in parallel
	Result  int // bytes of text of each result
	Tools   int // offered tools
	History int // messages before the question, of 4 kB each
	Each    int // 1: the model writes each token separately
	Pace    int // milliseconds between tokens
	Delay   int // milliseconds before the model or a tool answers
	Hang    int // 1: the model stops in the middle of its answer and keeps the connection
}

// String returns the script as the name of a model.
func (s script) String() string {
	return fmt.Sprintf("s-%d-%d-%d-%d-%d-%d-%d-%d-%d-%d", s.Tokens, s.Rounds, s.Calls, s.Result, s.Tools, s.History, s.Each, s.Pace, s.Delay, s.Hang)
}

// scriptIn returns the script in body, the body of a request whose "model" is a script. ok is false if it is not.
func scriptIn(body []byte) (s script, ok bool) {
	_, rest, _ := bytes.Cut(body, []byte(`"model":"s-`))
	name, _, found := bytes.Cut(rest, []byte(`"`))
	if !found {
		return s, false
	}
	fields := []*int{&s.Tokens, &s.Rounds, &s.Calls, &s.Result, &s.Tools, &s.History, &s.Each, &s.Pace, &s.Delay, &s.Hang}
	parts := strings.Split(string(name), "-")
	for i := range min(len(parts), len(fields)) {
		*fields[i], _ = strconv.Atoi(parts[i])
	}
	return s, len(parts) == len(fields)
}

// delay returns the time before the model answers.
func (s script) delay() time.Duration { return time.Duration(s.Delay) * time.Millisecond }

// tokenText returns the i-th token of an answer. It is about as long as a real model's token. No sequence of tokens
// repeats within 800 tokens, because answerd cuts off an answer that repeats itself.
func tokenText(i int) string { return "wo" + strconv.Itoa(100+i*37%899) + " " }

// fullAnswer returns the text of the whole answer.
func (s script) fullAnswer() string {
	var b strings.Builder
	for i := range s.Tokens {
		b.WriteString(tokenText(i))
	}
	return b.String()
}

// resultText returns a tool result of size bytes: lines of prose with quotes, which JSON must escape.
func resultText(size int) string {
	const line = "A line of a result that a tool found somewhere, \"quoted\" once.\n"
	return strings.Repeat(line, size/len(line)+1)[:size]
}

// questionBody returns the body of one POST /answer.
func (s script) questionBody() []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	q := struct {
		Question string    `json:"question"`
		History  []message `json:"history,omitempty"`
		Model    string    `json:"model"`
	}{Question: "What is known about it?", Model: s.String()}
	for i := range s.History {
		q.History = append(q.History, message{[]string{"user", "assistant"}[i%2], strings.Repeat("past ", 4096/5)})
	}
	b, _ := json.Marshal(q) // cannot fail for strings
	return b
}

// quoteJSON returns text as a JSON string.
func quoteJSON(text string) string {
	b, _ := json.Marshal(text) // cannot fail for a string
	return string(b)
}
