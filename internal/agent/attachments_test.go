package agent_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/attachment"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// newAttachment returns an attachment with data, which is not encoded.
func newAttachment(t *testing.T, name, mediaType, data string) agent.Media {
	t.Helper()
	m, err := attachment.New(name, mediaType, base64.StdEncoding.EncodeToString([]byte(data)))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// withProfile returns an option that gives the scripted model this profile.
func withProfile(p llm.Profile) func(*agent.Options) {
	p.ID = "scripted"
	return func(o *agent.Options) { o.Profiles = map[string]llm.Profile{"scripted": p} }
}

func TestAttachmentsReachTheModelInOpenAIsForms(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("!")), withProfile(llm.Profile{Images: true, Audio: true, PDF: true}))
	r := agent.Request{Question: "Compare.", OnlyAcceptedMedia: true, Media: []agent.Media{
		newAttachment(t, "a.png", "image/png", "\x89PNG\r\n\x1a\n"), newAttachment(t, "a.mp3", "audio/mpeg", "ID3"),
		newAttachment(t, "a.pdf", "application/pdf", "%PDF-1"), newAttachment(t, "a.csv", "text/csv", "x,y\n1,2\n"),
	}}
	h.Events(t, h.StartRun(t, r).ID)
	messages := h.Model.Requests()[0].Messages
	got := string(messages[len(messages)-1].Parts)
	want := `[{"type":"text","text":"Compare.\n\nAttachment a.csv:\n` + "```" + `\nx,y\n1,2\n` + "```" + `"},` +
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}},` +
		`{"type":"input_audio","input_audio":{"data":"SUQz","format":"mp3"}},` +
		`{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,JVBERi0x"}}]`
	if got != want {
		t.Errorf("the model got %s, want %s", got, want)
	}
}

func TestAttachmentsThatTheModelDoesNotTakeAreRefused(t *testing.T) {
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("!")), withProfile(llm.Profile{Images: true}))
	r := agent.Request{Question: "?", OnlyAcceptedMedia: true, Media: []agent.Media{
		newAttachment(t, "a.txt", "text/plain", "x"), newAttachment(t, "a.pdf", "application/pdf", "%PDF-1")}}
	_, err := h.Start(t.Context(), auth.Identity{}, r)
	var invalid *agent.InvalidError
	if want := "the model scripted does not take application/pdf; it takes images and text"; !errors.As(err, &invalid) || invalid.Pointer != "/attachments/1" || invalid.Detail != want {
		t.Errorf("got %v, want %s at /attachments/1", err, want)
	}
	r.OnlyAcceptedMedia = false // of another API format
	h.Events(t, h.StartRun(t, r).ID)
	messages := h.Model.Requests()[0].Messages
	if got, want := messages[len(messages)-1].Content, "[A PDF document (a.pdf, application/pdf, 6 bytes) was here, which this model cannot take.]"; !strings.HasSuffix(got, want) {
		t.Errorf("the model got %q, want %q at the end", got, want)
	}
}

// The attachments are stored with the run, for the process that takes it over.
func TestAttachmentsSurviveATakeover(t *testing.T) {
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	newProcess := func(log event.Log) *agenttest.Fixture {
		return agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("!")), func(o *agent.Options) {
			o.Log, o.Durable = log, true
			withProfile(llm.Profile{PDF: true})(o)
		})
	}

	first := newProcess(origin)
	run := first.StartRun(t, agent.Request{Question: "?", Background: true, Media: []agent.Media{newAttachment(t, "a.pdf", "application/pdf", "%PDF-1")}})
	first.Events(t, run.ID)
	second := newProcess(origin.diedAfter(t, run, 1))
	second.Events(t, run.ID)

	for name, h := range map[string]*agenttest.Fixture{"first": first, "second": second} {
		messages := h.Model.Requests()[0].Messages
		if got, want := string(messages[len(messages)-1].Parts), `"file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,JVBERi0x"}`; !strings.Contains(got, want) {
			t.Errorf("%s process: the model got %s, want %s in it", name, got, want)
		}
	}
}
