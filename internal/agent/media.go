package agent

import (
	"errors"
	"net/url"
	"strings"

	"answerd/internal/mcp/content"
)

var errMedia = errors.New("must be a data: URL with a PNG, JPEG, GIF or WebP image or WAV or MP3 sound in base64, or the https: URL of an image")

// NewMedia reads a picture or a sound as callers send it: a data: URL (RFC 2397) with
// base64, or an https: address, which the model's endpoint fetches and we never do.
func NewMedia(address string) (Media, error) {
	rest, inline := strings.CutPrefix(address, "data:")
	if !inline {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return Media{}, errMedia
		}
		return Media{URL: address}, nil
	}
	kind, data, ok := strings.Cut(rest, ";base64,")
	if !ok || data == "" {
		return Media{}, errMedia
	}
	m, err := (&content.Media{MIME: kind, Data: data}).Normalize()
	if err != nil {
		return Media{}, errMedia
	}
	return Media{MIME: m.MIME, Data: m.Data}, nil
}
