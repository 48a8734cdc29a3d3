package window

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// newConversation returns a conversation that is written as one line: S system, h and a a history of user and
// assistant, Q the question, C an assistant's message with as many calls as R's follow.
// Each message has size bytes.
func newConversation(form string, size func(i int) int) *Conversation {
	c := &Conversation{StoredAt: func(callID string) string { return "/runs/run_x/results/" + url.PathEscape(callID) }}
	calls := 0
	for i, kind := range form {
		m := llm.Message{Text: strings.Repeat("é", size(i)/2) + fmt.Sprint(i)}
		switch kind {
		case 'S':
			m.Role = llm.System
		case 'h', 'a':
			c.History++
			m.Role = map[rune]llm.Role{'h': llm.User, 'a': llm.Assistant}[kind]
		case 'Q':
			m.Role = llm.User
		case 'C':
			m.Role, m.Text = llm.Assistant, ""
			for range len(form[i+1:]) - len(strings.TrimLeft(form[i+1:], "R")) {
				calls++
				m.Calls = append(m.Calls, llm.ToolCall{ID: fmt.Sprintf("c/%d", calls), Name: "tool", Arguments: fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", size(i)))})
			}
		case 'R':
			m.Role, m.Tool = llm.ToolRole, "tool"
			last := c.Messages
			for j := len(last) - 1; ; j-- {
				if calls := last[j].Calls; calls != nil {
					m.CallID = calls[len(last)-1-j].ID
					break
				}
			}
		}
		c.Messages = append(c.Messages, m)
	}
	return c
}

// shapeOf writes a conversation as newConversation reads it; r is a placeholder, and c a
// result that was cut.
func shapeOf(c *Conversation) string {
	var b strings.Builder
	for i, m := range c.Messages {
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
		case i <= c.History:
			b.WriteByte(map[llm.Role]byte{llm.User: 'h', llm.Assistant: 'a'}[m.Role])
		default:
			b.WriteByte('Q')
		}
	}
	return b.String()
}

func TestFitReplacesOldResultsAndThenDropsHistory(t *testing.T) {
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
		got := newConversation("ShahaQCRRCRCR", func(int) int { return 1200 })
		w := New(llm.Profile{})
		weight := w.fit(got, c.limit)
		if shapeOf(got) != c.want || weight > c.limit {
			t.Errorf("fit(%d) = %s of %d tokens, want %s", c.limit, shapeOf(got), weight, c.want)
		}
	}
}

// Calls of a client's tools leave the history together with their results. The placeholder of
// a result that came with the request names no path, since the log does not store it.
func TestFitDropsCallsTogetherWithTheirResults(t *testing.T) {
	for limit := int64(0); limit < 1200; limit += 20 {
		c := newConversation("SCRRahCRQ", func(int) int { return 300 })
		c.History = 7 // all up to the question
		w := New(llm.Profile{})
		w.fit(c, limit)
		open := make(map[string]bool)
		for _, m := range c.Messages {
			for _, call := range m.Calls {
				open[call.ID] = true
			}
			if m.Role == llm.ToolRole && !open[m.CallID] {
				t.Fatalf("at %d tokens a result has lost its call, want both or none: %s", limit, shapeOf(c))
			}
			delete(open, m.CallID)
		}
		if len(open) > 0 {
			t.Fatalf("at %d tokens a call has lost its result: %s, %d open, want 0", limit, shapeOf(c), len(open))
		}
	}

	c := newConversation("SQCRCR", func(int) int { return 600 })
	c.StoredAt = func(string) string { return "" }
	w := New(llm.Profile{})
	w.fit(c, 300)

	for _, m := range c.Messages {
		if strings.Contains(m.Text, "/runs/") || strings.Contains(m.Text, "kept at") {
			t.Errorf("%s: the placeholder %q names a path, want none", shapeOf(c), m.Text)
		}
	}

	if got := shapeOf(c); !strings.Contains(got, "r") || !strings.Contains(got, "c") {
		t.Errorf("fit(300) = %s, want placeholders and cut results", got)
	}
}

func TestPlaceholderNamesTheCallAndTheStoredResult(t *testing.T) {
	c := newConversation("SQCRCR", func(int) int { return 900 })
	c.Messages[3].Failed = true
	w := New(llm.Profile{})
	w.fit(c, 1500)
	want := llm.Message{Role: llm.ToolRole, CallID: "c/1", Tool: "tool", Failed: true,
		Text: "[The result of tool (call c/1) was left out to make room. It is kept at /runs/run_x/results/c%2F1.]"}
	if !reflect.DeepEqual(c.Messages[3], want) || strings.Contains(want.Text, "\n") {
		t.Errorf("placeholder %+v, want %+v", c.Messages[3], want)
	}
}

// One result that is larger than the window does not drive out what was said before.
func TestFitCutsAHugeResultFirst(t *testing.T) {
	c := newConversation("ShaQCRCR", func(i int) int { return map[bool]int{true: 300000, false: 600}[i == 7] })
	w := New(llm.Profile{})
	if weight := w.fit(c, 4000); shapeOf(c) != "ShaQCRCc" || weight > 4000 {
		t.Errorf("fit(4000) = %s of %d tokens, want ShaQCRCc within 4000", shapeOf(c), weight)
	}
	if last := c.Messages[7].Text; !strings.HasSuffix(last, "[cut here to make room; the whole is kept at /runs/run_x/results/c%2F2]") || len(last) < 5000 {
		t.Errorf("the cut result has %d bytes and ends with %q, want at least 5000 and the path of the whole", len(last), last[max(0, len(last)-100):])
	}
}

// Pictures count, and leave the last turn before its text does.
func TestFitLeavesOutMediaBeforeText(t *testing.T) {
	newWithMedia := func() *Conversation {
		c := newConversation("SQCRCR", func(int) int { return 900 })
		for _, i := range []int{3, 5} {
			c.Messages[i].Media = []llm.Media{{MIME: "image/png", Data: "iVBORw0KGgo="}, {MIME: "audio/mpeg", Data: strings.Repeat("A", 25600)}}
		}
		return c
	}
	for _, test := range []struct {
		limit int64
		first int // pictures and sounds that are left of each turn
		last  int
	}{{10_000, 2, 2}, {3500, 0, 2}, {1600, 0, 0}} {
		c := newWithMedia()
		w := New(llm.Profile{})
		weight := w.fit(c, test.limit)
		first, last := c.Messages[3], c.Messages[5]
		if len(first.Media) != test.first || len(last.Media) != test.last || weight > test.limit || weight != w.conversationTokens(c) {
			t.Errorf("fit(%d) leaves %d and %d media in %d tokens, want %d and %d", test.limit, len(first.Media), len(last.Media), weight, test.first, test.last)
		}
		if said := strings.Contains(last.Text, "[not shown, to make room; the whole is kept at /runs/run_x/results/c%2F2]"); said != (test.last == 0) {
			t.Errorf("fit(%d): the note is there: %t, want %t, in …%s", test.limit, said, test.last == 0, last.Text[max(0, len(last.Text)-100):])
		}
	}
}

// Whatever the conversation and the limit: what the model needs to go on stays as it is,
// calls and results stay pairs, and the result is within the limit or nothing more could
// be done.
func TestFitKeepsWhatTheModelNeeds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	fitted := 0
	for range 600 {
		form := "S" + strings.Repeat("ha", rnd.IntN(4)) + []string{"", "h"}[rnd.IntN(2)] + "Q"
		turns := rnd.IntN(5)
		for range turns {
			form += "C" + strings.Repeat("R", 1+rnd.IntN(3))
		}

		c := newConversation(form, func(int) int { return 1 << rnd.IntN(16) })
		before := slices.Clone(c.Messages)
		history, limit := c.History, int64(1+rnd.IntN(40000))
		w := New(llm.Profile{})
		w.factor = 0.5 + 2*rnd.Float64()
		weight := w.fit(c, limit)
		if all := w.conversationTokens(c); all != weight {
			t.Fatalf("fit(%s, %d) = %d, want the estimate for what is left, %d", form, limit, weight, all)
		}
		checkTrimmed(t, form, before[0], before[history+1:], c)
		if weight <= limit {
			fitted++
			continue
		}
		if c.History > 0 || hasLong(c) {
			t.Errorf("fit(%s, %d) leaves %s of %d tokens, want less: more could be left out", form, limit, shapeOf(c), weight)
		}
	}
	if fitted < 200 {
		t.Errorf("%d of 600 conversations fit, want at least 200", fitted)
	}
}

// hasLong reports whether a result of an earlier turn is longer than its placeholder, or
// arguments are.
func hasLong(c *Conversation) bool {
	return slices.ContainsFunc(c.Messages[:c.lastTurn()], func(m llm.Message) bool {
		long := slices.ContainsFunc(m.Calls, func(c llm.ToolCall) bool { return len(c.Arguments) > longArguments })
		return long || m.Role == llm.ToolRole && len(m.Text) > 200 && !strings.HasPrefix(m.Text, "[The result")
	})
}

// checkTrimmed compares what was behind the history with what became of it.
func checkTrimmed(t *testing.T, form string, system llm.Message, before []llm.Message, c *Conversation) {
	t.Helper()
	after := c.Messages[c.History+1:]
	if !reflect.DeepEqual(c.Messages[0], system) || len(after) != len(before) {
		t.Fatalf("%s became %s, want all messages behind the history", form, shapeOf(c))
	}
	if c.History > 0 && c.Messages[1].Role != llm.User {
		t.Errorf("%s became %s, want a history that begins with a user's message", form, shapeOf(c))
	}

	open := make(map[string]bool)
	for i, m := range after {
		for _, call := range m.Calls {
			open[call.ID] = true
		}
		if m.Role != llm.ToolRole {
			was := before[i]
			if short := shortenArguments(&was); i < c.lastTurn()-c.History-1 && reflect.DeepEqual(m, short) {
				continue
			}
			if !reflect.DeepEqual(m, was) {
				t.Errorf("%s: message %d = %+v, want %+v", form, i, m, was)
			}
			continue
		}
		if !open[m.CallID] || m.CallID != before[i].CallID || m.Role != before[i].Role || m.Tool != before[i].Tool {
			t.Errorf("%s: result %d = %+v, want that of %+v", form, i, m, before[i])
		}
		if strings.ContainsRune(m.Text, '\ufffd') {
			t.Errorf("%s: result %d %q, want it cut between characters", form, i, m.Text)
		}
		delete(open, m.CallID)
	}
	if len(open) > 0 {
		t.Errorf("%s: calls %v have no result, want 0", form, open)
	}
}

func TestObserveFollowsTheProvidersCount(t *testing.T) {
	w := New(llm.Profile{ContextTokens: 8000})
	if w.promptLimit() != 7000 || promptLimitFor(llm.Profile{ContextTokens: 8000, MaxOutputTokens: 500}) != 7500 || promptLimitFor(llm.Profile{ContextTokens: 1 << 20}) != 1<<20-8192 {
		t.Errorf("promptLimit() = %d, want 7000", w.promptLimit())
	}
	c := newConversation("SQ", func(int) int { return 3000 })
	w.sent = estimatePlain(c)
	for _, u := range []struct {
		counted int64
		factor  float64
	}{{w.sent * 2, 2}, {w.sent / 2, 0.5}, {1, 0.25}, {1 << 60, 4}, {0, 4}, {-5, 4}} {
		w.Observe(event.Usage{InputTokens: u.counted})
		if w.factor < u.factor-0.01 || w.factor > u.factor+0.01 {
			t.Errorf("Observe(%d) of %d: factor = %v, want %v", u.counted, w.sent, w.factor, u.factor)
		}
	}
}

func promptLimitFor(p llm.Profile) int64 { return New(p).promptLimit() }

func BenchmarkFit(b *testing.B) {
	form := "S" + strings.Repeat("ha", 8) + "Q" + strings.Repeat("CRRRR", 10)
	all := newConversation(form, func(int) int { return 4000 })
	b.ReportAllocs()
	for b.Loop() {
		c := *all
		c.Messages = slices.Clone(all.Messages)
		w := New(llm.Profile{})
		w.fit(&c, 20000)
	}
}
