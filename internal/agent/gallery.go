package agent

import (
	"fmt"
	"strings"

	"answerd/internal/llm"
	"answerd/internal/mcp/content"
)

// Bounds of what a model is shown besides text.
const (
	maxShownPerTurn = 8        // pictures and sounds
	maxShownPerRun  = 16 << 20 // characters of base64, which every later request repeats
)

// gallery is the pictures and sounds of a run's results that its model is shown.
type gallery struct {
	profile llm.Profile // of the model
	budget  *budget     // of the run
	turn    int         // shown in this turn
	size    int         // shown in this run, in characters of base64
}

func (g *gallery) nextTurn() { g.turn = 0 }

// take lets the model be shown m, or says why not. A model that takes nothing such is
// told nothing: the placeholder in the text is all that there is to say.
func (g *gallery) take(m *content.Media) (_ *content.Media, refusal string) {
	if m == nil || !g.profile.Images && !g.profile.Audio {
		return nil, ""
	}
	checked, err := m.Normalize()
	switch {
	case err != nil:
		return nil, err.Error()
	case checked.IsImage() && !g.profile.Images || !checked.IsImage() && !g.profile.Audio:
		return nil, ""
	case g.turn == maxShownPerTurn:
		return nil, fmt.Sprintf("only %d can be shown in one turn", maxShownPerTurn)
	case g.size+len(checked.Data) > maxShownPerRun:
		return nil, "too much has been shown already"
	case !g.budget.takeMedia(len(checked.Data)):
		return nil, "the run's budget of result bytes is used up"
	}
	g.turn++
	g.size += len(checked.Data)
	return checked, ""
}

// exhibit is a result as the model gets it: the text, and what is shown besides. The
// text says where everything was.
func (g *gallery) exhibit(c *call, res *content.Result) (text string, media []llm.Media) {
	var parts []string
	for _, p := range res.Parts() {
		taken, refusal := g.take(p.Media)
		switch {
		case taken != nil:
			kind := "Sound"
			if taken.IsImage() {
				kind = "Image"
			}
			name := fmt.Sprintf("%s %d", kind, len(media)+1)
			media = append(media, llm.Media{
				Label: fmt.Sprintf("%s of the result of %s (call %s):", name, c.Tool, c.CallID),
				MIME:  taken.MIME, Data: taken.Data,
			})
			p.Text += fmt.Sprintf(" (follows as %s of this result)", name)
		case refusal != "":
			p.Text += fmt.Sprintf(" (not shown: %s)", refusal)
		}
		parts = append(parts, p.Text)
	}
	return strings.Join(parts, "\n"), media
}
