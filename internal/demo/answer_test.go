package demo

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func ask(messages []chatMessage, tools []chatTool) *reply {
	return respond(&chatRequest{Messages: messages, Tools: tools, choice: "auto"})
}

func TestQuestionsChooseTools(t *testing.T) {
	for question, want := range map[string][]string{
		"What time is it?":                                {`current_time {}`},
		"what time is it in new york?":                    {`current_time {"time_zone":"America/New_York"}`},
		"What day is it today in Sydney?":                 {`current_time {"time_zone":"Australia/Sydney"}`},
		"What time is it in Asia/Kolkata?":                {`current_time {"time_zone":"Asia/Kolkata"}`},
		"What time is it in Atlantis?":                    {`current_time {"time_zone":"Atlantis"}`},
		"use current_time with time_zone=UTC":             {`current_time {"time_zone":"UTC"}`},
		"What time is it in Tokyo, Paris and New York?":   {`current_time {"time_zone":"Asia/Tokyo"}`, `current_time {"time_zone":"Europe/Paris"}`, `current_time {"time_zone":"America/New_York"}`},
		"What time is it in Tokyo and what is 12.5*8?":    {`current_time {"time_zone":"Asia/Tokyo"}`, `calculate {"expression":"12.5*8"}`},
		"What time is it in Tokyo, and what is 12.5 * 8?": {`current_time {"time_zone":"Asia/Tokyo"}`, `calculate {"expression":"12.5 * 8"}`},
		"What is 12.5 * 8?":                               {`calculate {"expression":"12.5 * 8"}`},
		"what is 7 plus 5 times 2":                        {`calculate {"expression":"7 + 5 * 2"}`},
		"What is 15% of 80?":                              {`calculate {"expression":"15 / 100 * 80"}`},
		"calculate (1,200 + 2)^2.":                        {`calculate {"expression":"(1200 + 2)^2"}`},
		"What is 1/0?":                                    {`calculate {"expression":"1/0"}`},
		"what is the square root of 2":                    {`calculate {"expression":"2 ^ 0.5"}`},
		"12 miles in km":                                  {`convert {"from":"mi","to":"km","value":12}`},
		"How much is $1,000.50 in euros?":                 {`convert {"from":"USD","to":"EUR","value":1000.5}`},
		"convert 100 EUR to USD":                          {`convert {"from":"EUR","to":"USD","value":100}`},
		"How many km are 12 miles?":                       {`convert {"from":"mi","to":"km","value":12}`},
		"what is -40 °C in °F":                            {`convert {"from":"°C","to":"°F","value":-40}`},
		"convert 5 parsecs to km":                         {`convert {"from":"parsecs","to":"km","value":5}`},
		"What is answerd?":                                {`search_docs {"query":"answerd"}`},
		"How do I resume a stream?":                       {`search_docs {"query":"resume a stream"}`},
		"search docs for sessions and tokens":             {`search_docs {"query":"sessions and tokens"}`},
		"Which tools need approval?":                      {`search_docs {"query":"Which tools need approval"}`},
		"Write a slow report about whales with 4 steps":   {`slow_report {"steps":4,"topic":"whales"}`},
		"Make a report in 3 steps of 200 ms about cats":   {`slow_report {"step_ms":200,"steps":3,"topic":"cats"}`},
		"please fail":                                     {`flaky_service {}`},
		"call the flaky service":                          {`flaky_service {}`},
		"show my notes":                                   {`list_notes {}`},
		"delete note 2":                                   {`delete_note {"id":2}`},
		"List the notes and delete note 3":                {`list_notes {}`, `delete_note {"id":3}`},
		"calculate 2+2 and 5 GB in MB and what is 2+2?":   {`calculate {"expression":"2+2"}`, `convert {"from":"GB","to":"MB","value":5}`},
		"hello":                          {},
		"":                               {},
		"Tell me a joke":                 {},
		"Thanks for your help today":     {},
		"What is the capital of France?": {},
		"I met 3 people in Rome on 2026-11-21 at 10:30": {},
		"Delete the note": {},
		"Are my notes any good? I would rather keep note 2.": {`list_notes {}`},
	} {
		if got := planned(ask(conversation(question), demoTools())); !reflect.DeepEqual(got, want) {
			t.Errorf("%q calls\n%q, want\n%q", question, got, want)
		}
	}
}

func TestFollowUpsReferToWhatCameBefore(t *testing.T) {
	for _, c := range []struct {
		texts []string
		want  []string
	}{
		{[]string{"What time is it in Tokyo?", "It is nine.", "and in Paris?"}, []string{`current_time {"time_zone":"Europe/Paris"}`}},
		{[]string{"What time is it in Tokyo?", "It is nine.", "Berlin?"}, []string{`current_time {"time_zone":"Europe/Berlin"}`}},
		{[]string{"What is 12.5*8?", "100", "and times 3?"}, []string{`calculate {"expression":"(12.5*8) * 3"}`}},
		{[]string{"What is 2+2?", "4", "times 3", "12", "minus 1"}, []string{`calculate {"expression":"((2+2) * 3) - 1"}`}},
		{[]string{"12 miles in km", "12 mi is 19.3 km.", "and 20?"}, []string{`convert {"from":"mi","to":"km","value":20}`}},
		{[]string{"12 miles in km", "12 mi is 19.3 km.", "and in yards?"}, []string{`convert {"from":"mi","to":"yd","value":12}`}},
		{[]string{"100 EUR in USD", "100 EUR is 116.28 USD (at rates of 2 November 2026).", "times 3"}, []string{`calculate {"expression":"116.28 * 3"}`}},
		{[]string{"How do I resume a stream?", "…", "and what about tokens?"}, []string{`search_docs {"query":"tokens"}`}},
		{[]string{"delete note 2", "Done.", "and 4?"}, []string{`delete_note {"id":4}`}},
		{[]string{"What time is it in Tokyo?", "It is nine.", "thanks!"}, []string{}},
		{[]string{"hello", "Hi.", "and in Paris?"}, []string{}},
	} {
		if got := planned(ask(conversation(c.texts...), demoTools())); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q calls %q, want %q", c.texts, got, c.want)
		}
	}
}

// A clause that needs an earlier one's number waits for the round after.
func TestSecondRoundUsesTheFirstOnesNumber(t *testing.T) {
	messages := conversation("What is 12*8 and then convert it from miles to km")
	first := ask(messages, demoTools())
	if got := planned(first); !reflect.DeepEqual(got, []string{`calculate {"expression":"12*8"}`}) {
		t.Fatalf("first round %q", got)
	}
	messages = withResults(messages, first, `{"expression":"12*8","result":96,"summary":"12*8 = 96"}`)
	second := ask(messages, demoTools())
	if got := planned(second); !reflect.DeepEqual(got, []string{`convert {"from":"mi","to":"km","value":96}`}) {
		t.Fatalf("second round %q", got)
	}
	last := ask(withResults(messages, second, "96 mi is 154.497024 km."), demoTools())
	if want := "12*8 = 96\n\n96 mi is 154.497024 km.\n\n" + standInNote; last.text != want {
		t.Errorf("%q, want %q", last.text, want)
	}
}

func TestAnswersWeaveInTheResults(t *testing.T) {
	for result, want := range map[string]string{
		"It is ten.": "It is ten.",
		`{"summary":"It is ten.","time":"10:00"}`:                   "It is ten.",
		`{"id":42,"name":"Ann","tags":["a","b"],"open":true}`:       "id: 42, name: Ann, open: true, tags: a; b",
		`[{"type":"text","text":"one"},{"type":"text","text":"2"}]`: "one; 2",
		`""`:                                   "The tool returned nothing.",
		"0":                                    "0",
		`{"error":"no such thing"}`:            "The tool current_time failed: no such thing\n\nI did not try a failed call again.",
		`{"error":{"message":"down"}}`:         "The tool current_time failed: down\n\nI did not try a failed call again.",
		"Error: timed out":                     "The tool current_time failed: Error: timed out\n\nI did not try a failed call again.",
		"the flaky service failed, as always.": "The tool current_time failed: the flaky service failed, as always.\n\nI did not try a failed call again.",
		"Errors: Errors are problem+json":      "Errors: Errors are problem+json",
		strings.Repeat("é", 2000):              strings.Repeat("é", maxRendered/2) + " …",
	} {
		messages := conversation("What time is it?")
		first := ask(messages, demoTools())
		got := ask(withResults(messages, first, result), demoTools())
		if len(got.calls) > 0 || got.text != want+"\n\n"+standInNote {
			t.Errorf("%.80q: %q, want %q", result, got.text, want)
		}
	}
}

// F10: whatever comes back, a question ends after a few rounds.
func TestNoQuestionLoops(t *testing.T) {
	for _, choice := range []string{"auto", "required"} {
		no := false
		r := &chatRequest{Messages: conversation("please fail, what is 1+1, 2+2, 3+3, 4+4 and 5+5?"), Tools: demoTools(), choice: choice, ParallelToolCalls: &no}
		seen := make(map[string]bool)
		rounds := 0
		for {
			out := respond(r)
			if len(out.calls) == 0 {
				if !strings.Contains(out.text, "failed") || !strings.Contains(out.text, standInNote) {
					t.Errorf("%s: %q", choice, out.text)
				}
				break
			}
			rounds++
			if len(out.calls) > 1 || seen[planned(out)[0]] || rounds > maxRounds {
				t.Fatalf("%s: round %d calls %q", choice, rounds, planned(out))
			}
			seen[planned(out)[0]] = true
			r.Messages = withResults(r.Messages, out, "Error: it failed")
		}
		if rounds != maxRounds {
			t.Errorf("%s: %d rounds", choice, rounds)
		}
	}
}

// S2.9
func TestToolChoice(t *testing.T) {
	for _, c := range []struct {
		choice, question string
		want             []string
	}{
		{`"none"`, "What time is it?", []string{}},
		{`"auto"`, "hello", []string{}},
		{`null`, "2+2", []string{`calculate {"expression":"2+2"}`}},
		{`"required"`, "What time is it in Rome?", []string{`current_time {"time_zone":"Europe/Rome"}`}},
		{`{"type":"function","function":{"name":"delete_note"}}`, "hello", []string{`delete_note {"id":1}`}},
		{`{"type":"function","function":{"name":"convert"}}`, "hello", []string{`convert {"from":"hello","to":"hello","value":-1000000000000000}`}},
		{`{"type":"function","function":{"name":"current_time"}}`, "what is 2+2 and what time is it in Oslo?", []string{`current_time {"time_zone":"Europe/Oslo"}`}},
	} {
		body := encode(map[string]any{"messages": []any{map[string]any{"role": "user", "content": c.question}},
			"tools": wireTools(demoTools()), "tool_choice": json.RawMessage(c.choice)})
		r, err := decodeChat(body)
		if err != nil {
			t.Fatalf("%s: %v", c.choice, err)
		}
		if got := planned(respond(r)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %q calls %q, want %q", c.choice, c.question, got, c.want)
		}
	}
	r, _ := decodeChat([]byte(`{"messages":[{"role":"user","content":"hi"}],"tools":` + string(encode(wireTools(demoTools()))) + `,"tool_choice":"required"}`))
	if got := planned(respond(r)); len(got) != 1 {
		t.Errorf("required and nothing fits: %q", got)
	}
}

// Golden tests of whole runs rest on this: no clock and no chance in an answer, and a
// system prompt with the time of day changes nothing.
func TestTheSameQuestionGetsTheSameCallIDs(t *testing.T) {
	messages := conversation("What time is it in Tokyo and what is 2+2?")
	a := ask(messages, demoTools())
	b := ask(append([]chatMessage{{Role: "system", Content: "It is 10:15:00."}}, messages...), demoTools())
	if !reflect.DeepEqual(a.calls, b.calls) || a.id != b.id || a.calls[0].id == a.calls[1].id {
		t.Errorf("%v\n%v", a, b)
	}
	again := ask(conversation("What is 2+2?", "4", "What is 2+2?"), demoTools())
	if once := ask(conversation("What is 2+2?"), demoTools()); once.calls[0].id == again.calls[0].id {
		t.Error("two calls of one conversation share an id")
	}
}

func TestItSaysWhatItLacks(t *testing.T) {
	for question, want := range map[string]string{
		"Delete the note": "I would call delete_note, but the question does not say what to give for id.",
		"hello":           "I found no tool that fits this question, and I know nothing by myself. I was given: book_table, calculate, convert,",
	} {
		if got := ask(conversation(question), demoTools()).text; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, standInNote) {
			t.Errorf("%q: %q", question, got)
		}
	}
	if got := ask(conversation("hello"), nil).text; !strings.Contains(got, "given no tools") {
		t.Errorf("without tools: %q", got)
	}
}
