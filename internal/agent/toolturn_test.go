package agent

import (
	"encoding/base64"
	"testing"

	"answerd/internal/agent/budget"
	"answerd/internal/llm"
	"answerd/internal/mcp/content"
)

// What a run shows its model comes again in every later request, so all of it is bounded.
func TestMediaOfARunIsBounded(t *testing.T) {
	g := mediaBudget{profile: llm.Profile{Images: true}, budget: &budget.Budget{}}
	big := &content.Media{MIME: "image/png", Data: base64.StdEncoding.EncodeToString(append([]byte("\x89PNG\r\n\x1a\n"), make([]byte, 3<<20-8)...))}
	for i := range 5 {
		g.shownInTurn = 0
		taken, refusal := g.admitMedia(big)
		if fits := i < 4; fits != (taken != nil) || fits != (refusal == "") {
			t.Errorf("picture %d of %d characters: taken %t, refusal %q, want taken %t", i+1, len(big.Data), taken != nil, refusal, fits)
		}
	}
	small := &content.Media{MIME: "image/png", Data: "iVBORw0KGgo="}
	if taken, refusal := g.admitMedia(small); taken != nil || refusal == "" {
		t.Errorf("not a byte more fits, and it is shown: taken %+v, refusal %q, want taken nil, refusal non-empty", taken, refusal)
	}
}

func TestModelGetsOnlyTheMediaOfItsProfile(t *testing.T) {
	picture, sound := &content.Media{MIME: "image/gif", Data: "R0lGODlh"}, &content.Media{MIME: "audio/mpeg", Data: "SUQzBA=="}
	for _, p := range []llm.Profile{{}, {Images: true}, {Audio: true}, {Images: true, Audio: true}} {
		g := mediaBudget{profile: p, budget: &budget.Budget{}}
		seen, note := g.admitMedia(picture)
		heard, other := g.admitMedia(sound)
		if (seen != nil) != p.Images || (heard != nil) != p.Audio || note != "" || other != "" {
			t.Errorf("%+v: picture %t, sound %t, %q, %q, want %v, %v, empty and empty", p, seen != nil, heard != nil, note, other, p.Images, p.Audio)
		}
	}
}
