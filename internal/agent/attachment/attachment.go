// Package attachment checks the files that belong to a question: images, audio, PDF and text.
//
//	m, err := attachment.New("plan.pdf", "application/pdf", data)
//	if !attachment.Accepts(profile, m) {
//		return fmt.Errorf("the model takes %s", attachment.Accepted(profile))
//	}
//
// The media type that a caller gives must be that of the bytes. Nothing is fetched or stored here.
package attachment

import (
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"answerd/internal/llm"
	"answerd/internal/mcp/content"
)

// Bounds of the attachments of one message. The size of the request bounds their bytes.
const (
	Max     = 16      // attachments
	maxText = 1 << 20 // bytes of a text
	maxName = 128     // bytes of a name
)

// PDF is the media type of PDF documents.
const PDF = "application/pdf"

// textTypes lists the media types outside of text/* whose content is text.
var textTypes = []string{
	"application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml",
	"application/javascript", "application/sql", "application/x-ndjson", "application/csv",
}

// errType lists the media types that New accepts.
var errType = errors.New("must be image/png, image/jpeg, image/gif, image/webp, audio/wav, audio/mpeg, application/pdf, or text")

// New returns an attachment from its name, which may be empty, its media type and its bytes in
// base64. The error is written for the caller.
func New(name, mediaType, data string) (llm.Media, error) {
	kind, _, err := mime.ParseMediaType(mediaType)
	if err != nil {
		return llm.Media{}, errType
	}
	data = strings.NewReplacer("\r", "", "\n", "").Replace(data) // as in MIME; a data: URL must have none

	media := llm.Media{Name: cleanName(name), MIME: kind, Data: data}
	switch {
	case kind == PDF:
		if head, err := decode(data); err != nil || !strings.Contains(head[:min(len(head), 1024)], "%PDF-") {
			return llm.Media{}, errors.New("its data is not application/pdf in base64")
		}
		return media, nil
	case IsText(media):
		text, err := decode(data)
		switch {
		case err != nil || !utf8.ValidString(text) || strings.ContainsRune(text, 0):
			return llm.Media{}, errors.New("its data is not text in UTF-8, in base64")
		case len(text) > maxText:
			return llm.Media{}, fmt.Errorf("its text is longer than %d bytes", maxText)
		}
		return media, nil
	}

	if top, _, _ := strings.Cut(kind, "/"); top != "image" && top != "audio" {
		return llm.Media{}, errType
	}
	checked, err := (&content.Media{MIME: mediaType, Data: data}).Normalize()
	if err != nil {
		if errors.Is(err, content.ErrMediaType) {
			return llm.Media{}, errType
		}
		return llm.Media{}, err
	}

	media.MIME, media.Data = checked.MIME, checked.Data
	return media, nil
}

// FromURL returns an attachment from a data: URL (RFC 2397) in base64, or an image from an https:
// URL. The model's endpoint fetches that URL.
func FromURL(name, address string) (llm.Media, error) {
	rest, inline := strings.CutPrefix(address, "data:")
	if !inline {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return llm.Media{}, errURL
		}
		return llm.Media{URL: address}, nil
	}
	kind, data, ok := strings.Cut(rest, ";base64,")
	if !ok || data == "" {
		return llm.Media{}, errURL
	}
	m, err := New(name, kind, data)
	if errors.Is(err, errType) {
		return llm.Media{}, errURL
	}
	return m, err
}

var errURL = errors.New("must be a data: URL with a PNG, JPEG, GIF or WebP image, WAV or MP3 sound, PDF or text in base64, or the https: URL of an image")

// IsText reports whether the content of a file is text, which is written into the message.
func IsText(m llm.Media) bool {
	switch {
	case m.MIME == "image/svg+xml":
		return false
	case strings.HasPrefix(m.MIME, "text/"), strings.HasSuffix(m.MIME, "+json"), strings.HasSuffix(m.MIME, "+xml"):
		return true
	}
	return slices.Contains(textTypes, m.MIME)
}

// Accepts reports whether a model takes m.
func Accepts(profile llm.Profile, m llm.Media) bool {
	switch {
	case IsText(m):
		return true
	case m.MIME == PDF:
		return profile.PDF
	case strings.HasPrefix(m.MIME, "audio/"):
		return profile.Audio
	}
	return profile.Images
}

// Accepted returns what a model takes, in words: "images, PDF and text".
func Accepted(p llm.Profile) string {
	var kinds []string
	for _, k := range []struct {
		name  string
		taken bool
	}{{"images", p.Images}, {"audio", p.Audio}, {"PDF", p.PDF}} {
		if k.taken {
			kinds = append(kinds, k.name)
		}
	}
	if len(kinds) == 0 {
		return "text only"
	}
	return strings.Join(kinds, ", ") + " and text"
}

// Describe returns a line for a model that does not take media.
func Describe(media llm.Media) string {
	what := "An image"
	switch {
	case media.MIME == PDF:
		what = "A PDF document"
	case strings.HasPrefix(media.MIME, "audio/"):
		what = "A sound"
	}
	var details []string
	if media.Name != "" {
		details = append(details, media.Name)
	}
	if media.MIME != "" {
		size := base64.RawStdEncoding.DecodedLen(len(strings.TrimRight(media.Data, "=")))
		details = append(details, media.MIME, fmt.Sprintf("%d bytes", size))
	}
	if len(details) > 0 {
		what += " (" + strings.Join(details, ", ") + ")"
	}
	return "[" + what + " was here, which this model cannot take.]"
}

// Inline returns the content of an attachment that is text, as a part of a message. The fence is
// longer than any in the text, so that the text cannot end it.
func Inline(media llm.Media) string {
	text, err := decode(media.Data)
	if err != nil {
		return ""
	}
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	name := media.Name
	if name == "" {
		name = media.MIME
	}
	return "Attachment " + name + ":\n" + fence + "\n" + strings.TrimSuffix(text, "\n") + "\n" + fence
}

// decode returns the bytes of padded base64 (RFC 4648 section 4).
func decode(data string) (string, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(data)
	if err == nil && len(b) == 0 {
		err = errors.New("it is empty")
	}
	return string(b), err
}

// cleanName returns the last element of a file's name on one line. It is untrusted text that
// becomes a part of a prompt.
func cleanName(name string) string {
	name = path.Base(strings.ReplaceAll(strings.ToValidUTF8(name, ""), `\`, "/"))
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) || strings.ContainsRune("`[]\"", r) {
			return '_'
		}
		return r
	}, name)
	if name == "." || name == "/" || name == ".." {
		return ""
	}
	if len(name) <= maxName {
		return name
	}
	end := maxName
	for !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end]
}
