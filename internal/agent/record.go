package agent

import (
	"encoding/json"

	"answerd/internal/llm"
	"answerd/internal/mcp/content"
)

// message is the ending as the model is told of it.
func (l *loop) message(c *call, end ending) llm.Message {
	m := llm.Message{Role: llm.ToolRole, CallID: c.CallID, Tool: c.Tool}
	if end.failed != nil {
		m.Text, m.Failed = l.budget.takeResult(c.note()+string(errorObject(end.failed.Payload)), end.where), true
		return m
	}
	text, media := l.shown.exhibit(c, end.result)
	text, _ = content.TruncateText(text, maxForModel, end.where)
	m.Text, m.Media = l.budget.takeResult(c.note()+text, end.where), media
	return m
}

// errorObject is a failure in the conversation and in the metadata.
func errorObject(text string) jsonText {
	quoted, _ := json.Marshal(map[string]string{"error": text}) // strings always marshal
	return quoted
}

// record adds a call to the metadata (S2.8). What a run returns of its calls is bounded
// as a whole; beyond that, each is there with its beginning.
func (l *loop) record(c *call, end ending) {
	params := l.takeParams(c)
	if end.failed != nil {
		text, _ := content.TruncateText(end.failed.Payload, l.metadataLeft(), end.where)
		l.add(c, params, errorObject(text))
		return
	}
	l.add(c, params, content.TruncateValue(end.worked.Payload, l.metadataLeft(), end.where))
}

// recordAsked adds a call whose result only the client will know.
func (l *loop) recordAsked(c *call) { l.add(c, l.takeParams(c), jsonText("null")) }

func (l *loop) takeParams(c *call) jsonText {
	params := c.params()
	if len(params) > l.metadataLeft() {
		text, _ := content.TruncateText(string(params), minMetadata, "")
		params, _ = json.Marshal(map[string]string{"args_text": text})
	}
	l.metaSize += len(params)
	return params
}

func (l *loop) add(c *call, params, result jsonText) {
	l.metaSize += len(result)
	l.meta.ToolNames = append(l.meta.ToolNames, c.Tool)
	l.meta.ToolParams = append(l.meta.ToolParams, params)
	l.meta.ToolResults = append(l.meta.ToolResults, result)
}

// metadataLeft is how many bytes the next entry may have.
func (l *loop) metadataLeft() int { return max(maxMetadata-l.metaSize, minMetadata) }
