package mcp

import (
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"strings"
)

// Media is a picture or a sound in a result, as its server sent it: nothing of it is
// checked before Check.
type Media struct {
	MIME string
	Data string // base64
}

// media is what of the block a model may see or hear; nil if there is nothing such.
func (b *block) media() *Media {
	kind, mimeType, data := b.binary()
	top, _, _ := strings.Cut(strings.ToLower(mimeType), "/")
	if data == "" || kind == "resource" && top != "image" && top != "audio" {
		return nil
	}
	return &Media{MIME: mimeType, Data: data}
}

// format is a kind of file that models take.
type format struct {
	mime  string
	magic func(head string) bool
}

func begins(with ...string) func(string) bool {
	return func(head string) bool {
		for _, w := range with {
			if strings.HasPrefix(head, w) {
				return true
			}
		}
		return false
	}
}

// riff is a container with its kind behind its length.
func riff(kind string) func(string) bool {
	return func(head string) bool { return len(head) >= 12 && head[:4] == "RIFF" && head[8:12] == kind }
}

func mp3(head string) bool {
	// An ID3 tag, or the eleven bits that begin a frame.
	return strings.HasPrefix(head, "ID3") || len(head) >= 2 && head[0] == 0xFF && head[1]&0xE0 == 0xE0
}

// formats are the media types of results and the one name that each has from then on.
// What is not here, no common endpoint takes: SVG and the like would fail the request.
var formats = map[string]format{
	"image/png":      {"image/png", begins("\x89PNG\r\n\x1a\n")},
	"image/jpeg":     {"image/jpeg", begins("\xFF\xD8\xFF")},
	"image/jpg":      {"image/jpeg", begins("\xFF\xD8\xFF")},
	"image/gif":      {"image/gif", begins("GIF87a", "GIF89a")},
	"image/webp":     {"image/webp", riff("WEBP")},
	"audio/wav":      {"audio/wav", riff("WAVE")},
	"audio/x-wav":    {"audio/wav", riff("WAVE")},
	"audio/wave":     {"audio/wav", riff("WAVE")},
	"audio/vnd.wave": {"audio/wav", riff("WAVE")},
	"audio/mpeg":     {"audio/mpeg", mp3},
	"audio/mp3":      {"audio/mpeg", mp3},
}

// lineBreaks are what base64 of mail programs has, and a data URL may not.
var lineBreaks = strings.NewReplacer("\r", "", "\n", "")

// Check returns the media with its type by the usual name and its base64 without line
// breaks, or says why no model can be shown it: an endpoint that doesn't like one part
// refuses the whole request. The error is fit for the model.
func (m *Media) Check() (*Media, error) {
	name, _, err := mime.ParseMediaType(m.MIME)
	f, known := formats[name]
	if err != nil || !known {
		return nil, errors.New("this type cannot be shown")
	}
	data := m.Data
	if strings.ContainsAny(data, "\r\n") {
		data = lineBreaks.Replace(data)
	}
	head, err := checkBase64(data)
	if err != nil {
		return nil, errors.New("its data is not base64")
	}
	if !f.magic(head) {
		return nil, fmt.Errorf("its data is not %s", f.mime)
	}
	return &Media{MIME: f.mime, Data: data}, nil
}

// checkBase64 returns the first bytes that s stands for, if all of it is padded base64.
func checkBase64(s string) (head string, err error) {
	const chunk = 4 << 10 // characters, a multiple of 4
	var in [chunk]byte
	var out [chunk / 4 * 3]byte
	for from := 0; from < len(s); from += chunk {
		n, err := base64.StdEncoding.Strict().Decode(out[:], in[:copy(in[:], s[from:])])
		if err != nil {
			return "", err
		}
		if from == 0 {
			head = string(out[:min(n, 16)])
		}
		if last := from+chunk >= len(s); !last && n < len(out) {
			return "", errors.New("padding before the end")
		}
	}
	return head, nil
}

// IsImage reports whether it is a picture, or else a sound.
func (m *Media) IsImage() bool { return strings.HasPrefix(m.MIME, "image/") }
