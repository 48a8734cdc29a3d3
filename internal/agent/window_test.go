package agent

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// chat is a conversation written as one line: S system, h and a a history of user and
// assistant, Q the question, C an assistant's message with as many calls as R's follow.
// Each message has size bytes.
func chat(shape string, size func(i int) int) *conversation {
	c := &conversation{runID: "run_x"}
	calls := 0
	for i, kind := range shape {
		m := llm.Message{Text: strings.Repeat("é", size(i)/2) + fmt.Sprint(i)}
		switch kind {
		case 'S':
			m.Role = llm.System
		case 'h', 'a':
			c.history++
			m.Role = map[rune]llm.Role{'h': llm.User, 'a': llm.Assistant}[kind]
		case 'Q':
			m.Role = llm.User
		case 'C':
			m.Role, m.Text = llm.Assistant, ""
			for range len(shape[i+1:]) - len(strings.TrimLeft(shape[i+1:], "R")) {
				calls++
				m.Calls = append(m.Calls, llm.ToolCall{ID: fmt.Sprintf("c/%d", calls), Name: "tool", Arguments: fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", size(i)))})
			}
		case 'R':
			m.Role, m.Tool = llm.ToolRole, "tool"
			last := c.messages
			for j := len(last) - 1; ; j-- {
				if calls := last[j].Calls; calls != nil {
					m.CallID = calls[len(last)-1-j].ID
					break
				}
			}
		}
		c.messages = append(c.messages, m)
	}
	return c
}

// shape shows what became of a chat's messages: a lower-case r is a stand-in, c a result
// that was cut.
func shape(c *conversation) string {
	var b strings.Builder
	for i, m := range c.messages {
		switch {
		case i == 0:
			b.WriteByte('S')
		case m.Role == llm.ToolRole && strings.HasPrefix(m.Text, "[The result"):
			b.WriteByte('r')
		case m.Role == llm.ToolRole && strings.Contains(m.Text, "[cut here"):
			b.WriteByte('c')
		case m.Role == llm.ToolRole:
			b.WriteByte('R')
		case len(m.Calls) > 0:
			b.WriteByte('C')
		case i <= c.history:
			b.WriteByte(map[llm.Role]byte{llm.User: 'h', llm.Assistant: 'a'}[m.Role])
		default:
			b.WriteByte('Q')
		}
	}
	return b.String()
}

// Issue 4, item 8: what leaves first.
func TestOldResultsLeaveFirstAndThenTheHistory(t *testing.T) {
	for _, c := range []struct {
		limit int64
		want  string
	}{
		{9000, "ShahaQCRRCRCR"},
		{5500, "ShahaQCrRCRCR"},
		{5100, "ShahaQCrrCRCR"},
		{4700, "ShahaQCrrCrCR"},
		{3900, "ShaQCrrCrCR"},
		{3100, "SQCrrCrCR"},
		{2400, "SQCrrCrCR"}, // arguments of earlier calls
		{1700, "SQCrrCrCc"},
	} {
		got := chat("ShahaQCRRCRCR", func(int) int { return 1200 })
		w := newWindow(llm.Profile{})
		weight := w.fit(got, c.limit)
		if shape(got) != c.want || weight > c.limit {
			t.Errorf("in %d tokens: %s of %d, want %s", c.limit, shape(got), weight, c.want)
		}
	}
}

// Calls of a client's tools and their results leave the history together, and what
// stands for a result that came with the request names no place: there is none.
func TestExchangesOfTheHistoryLeaveTogether(t *testing.T) {
	for limit := int64(0); limit < 1200; limit += 20 {
		c := chat("SCRRahCRQ", func(int) int { return 300 })
		c.history = 7 // all up to the question
		w := newWindow(llm.Profile{})
		w.fit(c, limit)
		open := make(map[string]bool)
		for _, m := range c.messages {
			for _, call := range m.Calls {
				open[call.ID] = true
			}
			if m.Role == llm.ToolRole && !open[m.CallID] {
				t.Fatalf("at %d tokens a result has lost its call: %s", limit, shape(c))
			}
			delete(open, m.CallID)
		}
		if len(open) > 0 {
			t.Fatalf("at %d tokens a call has lost its result: %s", limit, shape(c))
		}
	}
	c := chat("SQCRCR", func(int) int { return 600 })
	c.given = map[string]bool{"c/1": true, "c/2": true}
	w := newWindow(llm.Profile{})
	w.fit(c, 300)
	for _, m := range c.messages {
		if strings.Contains(m.Text, "/runs/") || strings.Contains(m.Text, "kept at") {
			t.Errorf("%s: %s", shape(c), m.Text)
		}
	}
	if got := shape(c); !strings.Contains(got, "r") || !strings.Contains(got, "c") {
		t.Errorf("nothing was left out: %s", got)
	}
}

func TestAStandInNamesTheCallAndItsPlace(t *testing.T) {
	c := chat("SQCRCR", func(int) int { return 900 })
	c.messages[3].Failed = true
	w := newWindow(llm.Profile{})
	w.fit(c, 1500)
	want := llm.Message{Role: llm.ToolRole, CallID: "c/1", Tool: "tool", Failed: true,
		Text: "[The result of tool (call c/1) was left out to make room. It is kept at /runs/run_x/results/c%2F1.]"}
	if !reflect.DeepEqual(c.messages[3], want) || strings.Contains(want.Text, "\n") {
		t.Errorf("%+v", c.messages[3])
	}
}

// One result that is larger than the window does not drive out what was said before.
func TestAHugeResultIsCutBeforeOthersLeave(t *testing.T) {
	c := chat("ShaQCRCR", func(i int) int { return map[bool]int{true: 300000, false: 600}[i == 7] })
	w := newWindow(llm.Profile{})
	if weight := w.fit(c, 4000); shape(c) != "ShaQCRCc" || weight > 4000 {
		t.Errorf("%s of %d", shape(c), weight)
	}
	if last := c.messages[7].Text; !strings.HasSuffix(last, "[cut here to make room; the whole is kept at /runs/run_x/results/c%2F2]") || len(last) < 5000 {
		t.Errorf("%d bytes: …%s", len(last), last[max(0, len(last)-100):])
	}
}

// Pictures count, and leave the last turn before its text does.
func TestPicturesLeaveTheWindow(t *testing.T) {
	show := func() *conversation {
		c := chat("SQCRCR", func(int) int { return 900 })
		for _, i := range []int{3, 5} {
			c.messages[i].Media = []llm.Media{{MIME: "image/png", Data: "iVBORw0KGgo="}, {MIME: "audio/mpeg", Data: strings.Repeat("A", 25600)}}
		}
		return c
	}
	for _, test := range []struct {
		limit int64
		first int // pictures and sounds that are left of each turn
		last  int
	}{{10_000, 2, 2}, {3500, 0, 2}, {1600, 0, 0}} {
		c := show()
		w := newWindow(llm.Profile{})
		weight := w.fit(c, test.limit)
		first, last := c.messages[3], c.messages[5]
		if len(first.Media) != test.first || len(last.Media) != test.last || weight > test.limit || weight != w.weigh(c) {
			t.Errorf("in %d tokens: %d and %d are shown, of %d", test.limit, len(first.Media), len(last.Media), weight)
		}
		if said := strings.Contains(last.Text, "[not shown, to make room; the whole is kept at /runs/run_x/results/c%2F2]"); said != (test.last == 0) {
			t.Errorf("in %d tokens: …%s", test.limit, last.Text[max(0, len(last.Text)-100):])
		}
	}
}

// Whatever the conversation and the limit: what the model needs to go on stays as it is,
// calls and results stay pairs, and the result is within the limit or nothing more could
// be done.
func TestTrimmingKeepsWhatTheModelNeeds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	fitted := 0
	for range 600 {
		form := "S" + strings.Repeat("ha", rnd.IntN(4)) + []string{"", "h"}[rnd.IntN(2)] + "Q"
		turns := rnd.IntN(5)
		for range turns {
			form += "C" + strings.Repeat("R", 1+rnd.IntN(3))
		}
		c := chat(form, func(int) int { return 1 << rnd.IntN(16) })
		before := slices.Clone(c.messages)
		history, limit := c.history, int64(1+rnd.IntN(40000))
		w := newWindow(llm.Profile{})
		w.factor = 0.5 + 2*rnd.Float64()
		weight := w.fit(c, limit)
		if all := w.weigh(c); all != weight {
			t.Fatalf("%s in %d: it weighs %d and not %d", form, limit, all, weight)
		}
		checkTrimmed(t, form, before[0], before[history+1:], c)
		if weight <= limit {
			fitted++
			continue
		}
		if c.history > 0 || hasLong(c) {
			t.Errorf("%s in %d: %s weighs %d, and more could go", form, limit, shape(c), weight)
		}
	}
	if fitted < 200 {
		t.Errorf("only %d of 600 fitted", fitted)
	}
}

// hasLong reports whether a result of an earlier turn is longer than its stand-in, or
// arguments are.
func hasLong(c *conversation) bool {
	return slices.ContainsFunc(c.messages[:c.turn()], func(m llm.Message) bool {
		long := slices.ContainsFunc(m.Calls, func(c llm.ToolCall) bool { return len(c.Arguments) > longArguments })
		return long || m.Role == llm.ToolRole && len(m.Text) > 200 && !strings.HasPrefix(m.Text, "[The result")
	})
}

// checkTrimmed compares what was behind the history with what became of it.
func checkTrimmed(t *testing.T, form string, system llm.Message, before []llm.Message, c *conversation) {
	t.Helper()
	after := c.messages[c.history+1:]
	if !reflect.DeepEqual(c.messages[0], system) || len(after) != len(before) {
		t.Fatalf("%s became %s", form, shape(c))
	}
	if c.history > 0 && c.messages[1].Role != llm.User {
		t.Errorf("%s became %s", form, shape(c))
	}
	open := make(map[string]bool)
	for i, m := range after {
		for _, call := range m.Calls {
			open[call.ID] = true
		}
		if m.Role != llm.ToolRole {
			was := before[i]
			if short := withoutArguments(&was); i < c.turn()-c.history-1 && reflect.DeepEqual(m, short) {
				continue
			}
			if !reflect.DeepEqual(m, was) {
				t.Errorf("%s: message %d became %+v", form, i, m)
			}
			continue
		}
		if !open[m.CallID] || m.CallID != before[i].CallID || m.Role != before[i].Role || m.Tool != before[i].Tool {
			t.Errorf("%s: result %d became %+v", form, i, m)
		}
		if strings.ContainsRune(m.Text, '\ufffd') {
			t.Errorf("%s: result %d was cut within a character", form, i)
		}
		delete(open, m.CallID)
	}
	if len(open) > 0 {
		t.Errorf("%s: calls %v have no result", form, open)
	}
}

func TestTheEstimateFollowsTheProvidersCount(t *testing.T) {
	w := newWindow(llm.Profile{ContextTokens: 8000})
	if w.limit() != 7000 || newWindowLimit(llm.Profile{ContextTokens: 8000, MaxOutputTokens: 500}) != 7500 || newWindowLimit(llm.Profile{ContextTokens: 1 << 20}) != 1<<20-8192 {
		t.Errorf("limit %d", w.limit())
	}
	c := chat("SQ", func(int) int { return 3000 })
	w.sent = w.plain(c)
	for _, u := range []struct {
		counted int64
		factor  float64
	}{{w.sent * 2, 2}, {w.sent / 2, 0.5}, {1, 0.25}, {1 << 60, 4}, {0, 4}, {-5, 4}} {
		w.learn(event.Usage{InputTokens: u.counted})
		if w.factor < u.factor-0.01 || w.factor > u.factor+0.01 {
			t.Errorf("after %d of %d the factor is %v", u.counted, w.sent, w.factor)
		}
	}
}

func newWindowLimit(p llm.Profile) int64 { w := newWindow(p); return w.limit() }

func BenchmarkFit(b *testing.B) {
	form := "S" + strings.Repeat("ha", 8) + "Q" + strings.Repeat("CRRRR", 10)
	all := chat(form, func(int) int { return 4000 })
	b.ReportAllocs()
	for b.Loop() {
		c := *all
		c.messages = slices.Clone(all.messages)
		w := newWindow(llm.Profile{})
		w.fit(&c, 20000)
	}
}
