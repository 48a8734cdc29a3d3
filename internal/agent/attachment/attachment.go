// Package attachment checks the files that belong to a question: images, audio, PDF and text.
//
//	m, err := attachment.New("plan.pdf", "application/pdf", data)
//	if !attachment.Accepts(profile, m) {
//		return fmt.Errorf("the model takes %s", attachment.Accepted(profile))
//	}
//
// The media type that a client states must match the bytes. The package does not fetch or store files.
package attachment

import (
	"cmp"
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

// Limits on the attachments of one message. Files that are not text are limited only by the size of the HTTP request.
const (
	Max     = 16      // number of attachments
	maxText = 1 << 20 // bytes of a text file
	maxName = 128     // bytes of a file name
)

// PDF is the media type of PDF documents.
const PDF = "application/pdf"

// textTypes lists the media types other than text/* whose content is text.
var textTypes = []string{
	"application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml",
	"application/javascript", "application/sql", "application/x-ndjson", "application/csv",
}

// errType lists the media types that New accepts.
var errType = errors.New("must be image/png, image/jpeg, image/gif, image/webp, audio/wav, audio/mpeg, application/pdf, or text")

// New returns an attachment. name may be "". data is in base64, and may have line breaks. New returns an error, for API
// clients, if the media type is not accepted, if data is not of that type, or if a text exceeds maxText.
func New(name, mediaType, data string) (llm.Media, error) {
	kind, _, err := mime.ParseMediaType(mediaType)
	if err != nil {
		return llm.Media{}, errType
	}
	data = strings.NewReplacer("\r", "", "\n", "").Replace(data) // as in MIME; a data: URL must have none
	media := llm.Media{Name: cleanName(name), MIME: kind, Data: data}
	topLevel, _, _ := strings.Cut(kind, "/")
	switch {
	case kind == PDF:
		err = checkPDF(data)
	case IsText(media):
		err = checkText(data)
	case topLevel == "image" || topLevel == "audio":
		err = normalize(&media, mediaType)
	default:
		err = errType
	}
	if err != nil {
		return llm.Media{}, err
	}
	return media, nil
}

// normalize checks an image or audio, and gives media the media type and the data of content.Media.Normalize.
func normalize(media *llm.Media, mediaType string) error {
	checked, err := (&content.Media{MIME: mediaType, Data: media.Data}).Normalize()
	switch {
	case errors.Is(err, content.ErrMediaType):
		return errType
	case err != nil:
		return err
	}
	media.MIME, media.Data = checked.MIME, checked.Data
	return nil
}

// checkPDF returns an error if data is not a PDF document in base64.
func checkPDF(data string) error {
	file, err := decodeBase64(data)
	// Other bytes may come before the header, as long as it is within the first 1,024 bytes: PDF readers accept that.
	if err != nil || !strings.Contains(file[:min(len(file), 1024)], "%PDF-") {
		return errors.New("its data is not application/pdf in base64")
	}
	return nil
}

// checkText returns an error if data is not a text in base64, or if the text is longer than maxText bytes.
func checkText(data string) error {
	text, err := decodeBase64(data)
	switch {
	case err != nil || !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return errors.New("its data is not text in UTF-8, in base64")
	case len(text) > maxText:
		return fmt.Errorf("its text is longer than %d bytes", maxText)
	}
	return nil
}

// FromURL returns an attachment from a base64 data: URL (RFC 2397), or an image from an https: URL. Only the model's
// endpoint fetches an https: URL. name is used only for a data: URL. The error is errURL, or that of New.
func FromURL(name, address string) (llm.Media, error) {
	rest, isData := strings.CutPrefix(address, "data:")
	if !isData {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return llm.Media{}, errURL
		}
		return llm.Media{URL: address}, nil
	}
	kind, data, isBase64 := strings.Cut(rest, ";base64,")
	if !isBase64 || data == "" {
		return llm.Media{}, errURL
	}
	media, err := New(name, kind, data)
	if errors.Is(err, errType) {
		return llm.Media{}, errURL
	}
	return media, err
}

// errURL lists the URLs that FromURL accepts.
var errURL = errors.New("must be a data: URL with a PNG, JPEG, GIF or WebP image, WAV or MP3 sound, " +
	"PDF or text in base64, or the https: URL of an image")

// IsText reports whether a file's media type means that it is text, for Inline. An SVG image does not count as text.
func IsText(media llm.Media) bool {
	switch {
	case media.MIME == "image/svg+xml":
		return false
	case strings.HasPrefix(media.MIME, "text/"), strings.HasSuffix(media.MIME, "+json"), strings.HasSuffix(media.MIME, "+xml"):
		return true
	}
	return slices.Contains(textTypes, media.MIME)
}

// Accepts reports whether a model with this profile accepts media. Every model accepts text.
func Accepts(profile llm.Profile, media llm.Media) bool {
	switch {
	case IsText(media):
		return true
	case media.MIME == PDF:
		return profile.PDF
	case strings.HasPrefix(media.MIME, "audio/"):
		return profile.Audio
	}
	return profile.Images
}

// Accepted describes what a model with this profile accepts, such as "images, PDF and text".
func Accepted(profile llm.Profile) string {
	var kinds []string
	if profile.Images {
		kinds = append(kinds, "images")
	}
	if profile.Audio {
		kinds = append(kinds, "audio")
	}
	if profile.PDF {
		kinds = append(kinds, "PDF")
	}
	if len(kinds) == 0 {
		return "text only"
	}
	return strings.Join(kinds, ", ") + " and text"
}

// Placeholder returns the line that a model gets instead of an image, audio or PDF file that it does not accept.
func Placeholder(media llm.Media) string {
	description := "An image"
	switch {
	case media.MIME == PDF:
		description = "A PDF document"
	case strings.HasPrefix(media.MIME, "audio/"):
		description = "A sound"
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
		description += " (" + strings.Join(details, ", ") + ")"
	}
	return "[" + description + " was here, which this model cannot take.]"
}

// Inline returns a text file as part of a message: its name, and its content in a Markdown code fence. The fence is
// longer than any fence in the content, so that the content cannot end it. Inline returns "" if the data is not base64.
func Inline(media llm.Media) string {
	text, err := decodeBase64(media.Data)
	if err != nil {
		return ""
	}
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	name := cmp.Or(media.Name, media.MIME)
	return "Attachment " + name + ":\n" + fence + "\n" + strings.TrimSuffix(text, "\n") + "\n" + fence
}

// decodeBase64 decodes padded base64 (RFC 4648 section 4). It returns an error if the result is empty.
func decodeBase64(data string) (string, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(data)
	if err == nil && len(b) == 0 {
		err = errors.New("it is empty")
	}
	return string(b), err
}

// cleanName returns the last element of a file's path, cut to maxName bytes. It returns "" if the path is empty, or if
// its last element is "/", "." or "..". The name is untrusted and becomes part of a prompt, so cleanName replaces
// control characters, line breaks, backquotes, brackets and quotation marks with underscores.
func cleanName(name string) string {
	slashPath := strings.ReplaceAll(strings.ToValidUTF8(name, ""), `\`, "/")
	name = path.Base(slashPath)
	if name == "." || name == "/" || name == ".." {
		return ""
	}
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) || strings.ContainsRune("`[]\"", r) {
			return '_'
		}
		return r
	}, name)
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "") // drops a character that the cut has split
}
