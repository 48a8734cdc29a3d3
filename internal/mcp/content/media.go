package content

import (
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strings"
)

// Media is an image or audio in a result, as the server sent it. Normalize checks whether models accept it.
type Media struct {
	MIME string
	Data string // base64
}

// media returns the block's image or audio, or nil if the block has neither.
func (b *contentBlock) media() *Media {
	blockType, mimeType, data := b.binaryData()
	topLevelType, _, _ := strings.Cut(strings.ToLower(mimeType), "/")
	isMedia := blockType == "image" || blockType == "audio" || topLevelType == "image" || topLevelType == "audio"
	if data == "" || !isMedia {
		return nil
	}
	return &Media{MIME: mimeType, Data: data}
}

// mediaFormat is a file format that models accept. magic reports whether head, the first bytes of a file, identifies
// the format.
type mediaFormat struct {
	mime  string
	magic func(head string) bool
}

// matchPrefix returns a magic function that accepts any of the prefixes.
func matchPrefix(prefixes ...string) func(string) bool {
	return func(head string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(head, prefix) })
	}
}

// matchRIFF returns a magic function for a RIFF container: the letters RIFF, a length of four bytes, and the form type,
// such as WAVE.
func matchRIFF(formType string) func(string) bool {
	return func(head string) bool { return len(head) >= 12 && head[:4] == "RIFF" && head[8:12] == formType }
}

// isMP3 reports whether head is the start of an MP3 file.
func isMP3(head string) bool {
	// An MP3 file starts with an ID3 tag, or with a frame, whose first eleven bits are set.
	hasFrame := len(head) >= 2 && head[0] == 0xFF && head[1]&0xE0 == 0xE0
	return hasFrame || strings.HasPrefix(head, "ID3")
}

// mediaFormats maps the media types that common model endpoints accept to their formats, with the standard name of each
// type. Any other type, such as SVG, would make the endpoint reject the request.
var mediaFormats = map[string]mediaFormat{
	"image/png":      {"image/png", matchPrefix("\x89PNG\r\n\x1a\n")},
	"image/jpeg":     {"image/jpeg", matchPrefix("\xFF\xD8\xFF")},
	"image/jpg":      {"image/jpeg", matchPrefix("\xFF\xD8\xFF")},
	"image/gif":      {"image/gif", matchPrefix("GIF87a", "GIF89a")},
	"image/webp":     {"image/webp", matchRIFF("WEBP")},
	"audio/wav":      {"audio/wav", matchRIFF("WAVE")},
	"audio/x-wav":    {"audio/wav", matchRIFF("WAVE")},
	"audio/wave":     {"audio/wav", matchRIFF("WAVE")},
	"audio/vnd.wave": {"audio/wav", matchRIFF("WAVE")},
	"audio/mpeg":     {"audio/mpeg", isMP3},
	"audio/mp3":      {"audio/mpeg", isMP3},
}

// lineBreaks removes line breaks. Base64 in MIME has them (RFC 2045 section 6.8), but a data URL must not.
var lineBreaks = strings.NewReplacer("\r", "", "\n", "")

// ErrMediaType means that models do not accept the type of an image or audio. Its text is for the model.
var ErrMediaType = errors.New("this type cannot be shown")

// Normalize returns a copy of m with its type's standard name and with base64 without line breaks. It returns an error,
// with a text for the model, if models do not accept m. Callers must not send m in that case, because an endpoint that
// rejects one part rejects the whole request.
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

// maxMagic is the maximum number of bytes that the magic functions get.
const maxMagic = 16

// checkBase64 returns an error unless all of s is padded base64. head has the first bytes of the decoded data, at most
// maxMagic. checkBase64 decodes in chunks, so that large media need no second copy.
func checkBase64(s string) (head string, err error) {
	const chunk = 4 << 10 // characters, a multiple of 4
	var encoded [chunk]byte
	var decoded [chunk / 4 * 3]byte
	for isFirst := true; len(s) > 0; isFirst = false {
		size := copy(encoded[:], s)
		s = s[size:]
		decodedSize, err := base64.StdEncoding.Strict().Decode(decoded[:], encoded[:size])
		if err != nil {
			return "", err
		}
		if isFirst {
			head = string(decoded[:min(decodedSize, maxMagic)])
		}
		isPadded := decodedSize < len(decoded)
		if isPadded && len(s) > 0 {
			return "", errors.New("padding before the end")
		}
	}
	return head, nil
}

// IsImage reports whether the media is an image. Otherwise it is audio.
func (m *Media) IsImage() bool { return strings.HasPrefix(m.MIME, "image/") }
