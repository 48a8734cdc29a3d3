package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// script is what happens on the way to one answer. It travels as the name of the model,
// so that model, floor and load all know it and none keeps a state.
type script struct {
	Tokens  int // of the final answer
	Rounds  int // of tool calls before it
	Calls   int // in each round, at the same time
	Result  int // bytes of text of each result
	Tools   int // that are offered
	History int // messages before the question, of 4 kB each
	Each    int // 1: the model writes each token by itself
	Pace    int // milliseconds between tokens
	Delay   int // milliseconds before the model or a tool answers
	Hang    int // 1: the model stops in mid-answer and stays
}

func (s script) String() string {
	return fmt.Sprintf("s-%d-%d-%d-%d-%d-%d-%d-%d-%d-%d", s.Tokens, s.Rounds, s.Calls, s.Result, s.Tools, s.History, s.Each, s.Pace, s.Delay, s.Hang)
}

// scriptIn reads the script out of a request's body: its "model".
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

func (s script) delay() time.Duration { return time.Duration(s.Delay) * time.Millisecond }

// token is one of the answer's, about as long as those of models.
func token(i int) string { return "word" + strconv.Itoa(i%10) + " " }

// answer is the whole answer.
func (s script) answer() string {
	var b strings.Builder
	for i := range s.Tokens {
		b.WriteString(token(i))
	}
	return b.String()
}

// resultText is a tool's result: lines of prose, as JSON has them.
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
	b, _ := json.Marshal(q) // strings always marshal
	return b
}

// quoteJSON returns text as a JSON string.
func quoteJSON(text string) string {
	b, _ := json.Marshal(text) // strings always marshal
	return string(b)
}
