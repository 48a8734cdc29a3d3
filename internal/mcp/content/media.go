package content

import (
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"strings"
)

// Media is an image or audio in a result, as the server sent it. Normalize checks whether a model can get it.
type Media struct {
	MIME string
	Data string // base64
}

// media returns the image or audio in the block, or nil if the block has neither.
func (b *contentBlock) media() *Media {
	blockType, mimeType, data := b.binaryData()
	topLevel, _, _ := strings.Cut(strings.ToLower(mimeType), "/")
	isMedia := blockType != "resource" || topLevel == "image" || topLevel == "audio"
	if data == "" || !isMedia {
		return nil
	}
	return &Media{MIME: mimeType, Data: data}
}

// mediaFormat is a file format that models accept. magic reports whether the first bytes of a file
// are those of the format.
type mediaFormat struct {
	mime  string
	magic func(head string) bool
}

// hasPrefix returns a function that checks for any of the prefixes.
func hasPrefix(prefixes ...string) func(string) bool {
	return func(head string) bool {
		for _, p := range prefixes {
			if strings.HasPrefix(head, p) {
				return true
			}
		}
		return false
	}
}

// isRIFF returns a function that checks for a RIFF container: the letters RIFF, a length of four bytes, and the form
// type, such as WAVE.
func isRIFF(formType string) func(string) bool {
	return func(head string) bool { return len(head) >= 12 && head[:4] == "RIFF" && head[8:12] == formType }
}

// isMP3 reports whether head begins an MP3 file.
func isMP3(head string) bool {
	// An ID3 tag, or the eleven set bits with which each frame begins.
	hasFrame := len(head) >= 2 && head[0] == 0xFF && head[1]&0xE0 == 0xE0
	return hasFrame || strings.HasPrefix(head, "ID3")
}

// mediaFormats has the media types of results that common model endpoints accept, with the
// standard name of each. Other types, such as SVG, would make the endpoint refuse the request.
var mediaFormats = map[string]mediaFormat{
	"image/png":      {"image/png", hasPrefix("\x89PNG\r\n\x1a\n")},
	"image/jpeg":     {"image/jpeg", hasPrefix("\xFF\xD8\xFF")},
	"image/jpg":      {"image/jpeg", hasPrefix("\xFF\xD8\xFF")},
	"image/gif":      {"image/gif", hasPrefix("GIF87a", "GIF89a")},
	"image/webp":     {"image/webp", isRIFF("WEBP")},
	"audio/wav":      {"audio/wav", isRIFF("WAVE")},
	"audio/x-wav":    {"audio/wav", isRIFF("WAVE")},
	"audio/wave":     {"audio/wav", isRIFF("WAVE")},
	"audio/vnd.wave": {"audio/wav", isRIFF("WAVE")},
	"audio/mpeg":     {"audio/mpeg", isMP3},
	"audio/mp3":      {"audio/mpeg", isMP3},
}

// lineBreaks removes line breaks, which base64 of MIME has (RFC 2045 section 6.8) and a data URL
// must not have.
var lineBreaks = strings.NewReplacer("\r", "", "\n", "")

// ErrMediaType means that models do not accept the type of an image or audio. Its text is written for the model.
var ErrMediaType = errors.New("this type cannot be shown")

// Normalize returns a copy of m with the standard name of its type, and its base64 without line
// breaks. The error, whose text is written for the model, means that no model accepts m. The caller
// must not send m then, because an endpoint that refuses one part refuses the whole request.
func (m *Media) Normalize() (*Media, error) {
	name, _, err := mime.ParseMediaType(m.MIME)
	format, known := mediaFormats[name]
	if err != nil || !known {
		return nil, ErrMediaType
	}
	data := m.Data
	if strings.ContainsAny(data, "\r\n") {
		data = lineBreaks.Replace(data)
	}
	head, err := checkBase64(data)
	if err != nil {
		return nil, errors.New("its data is not base64")
	}
	if !format.magic(head) {
		return nil, fmt.Errorf("its data is not %s", format.mime)
	}
	return &Media{MIME: format.mime, Data: data}, nil
}

// maxMagic is the number of first bytes that the magic functions of mediaFormats get.
const maxMagic = 16

// checkBase64 returns an error unless all of s is padded base64. head is the first maxMagic bytes of the decoded data.
// It decodes in chunks, so that large media need no second copy.
func checkBase64(s string) (head string, err error) {
	const chunk = 4 << 10 // characters, a multiple of 4
	var encoded [chunk]byte
	var decoded [chunk / 4 * 3]byte
	for from := 0; from < len(s); from += chunk {
		size := copy(encoded[:], s[from:])
		n, err := base64.StdEncoding.Strict().Decode(decoded[:], encoded[:size])
		if err != nil {
			return "", err
		}
		if from == 0 {
			head = string(decoded[:min(n, maxMagic)])
		}
		isLast := from+chunk >= len(s)
		if !isLast && n < len(decoded) {
			return "", errors.New("padding before the end")
		}
	}
	return head, nil
}

// IsImage reports whether the media is an image. Otherwise it is audio.
func (m *Media) IsImage() bool { return strings.HasPrefix(m.MIME, "image/") }
