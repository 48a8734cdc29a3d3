package importtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// replacedWords lists words that the tree does not use any more, and what to write instead:
// the term of the specification or of the field. A word belongs here only if it has no other
// meaning in this tree, so that the test has no false positives. A word is compared without
// regard to case, with each part of an identifier and with the whole identifier.
var replacedWords = map[string]string{
	// The state of a token cache, of an OAuth client and of its network access.
	"keeper":   "a cache, such as CachedSource: it says that values are stored and fetched",
	"finder":   "discovery, the term of RFC 8414 and RFC 9728",
	"nearness": "addressClass: it orders addresses from public to private",
	"unhear":   "clearChallenge",

	// Results, media and messages of MCP servers.
	"hollow":       "an empty result, in place of the one that a server sent",
	"hollowed":     "an empty result, in place of the one that a server sent",
	"gallery":      "mediaBudget: it bounds the media for the model",
	"crowded":      "ambiguous: a message cannot be attributed to a single call",
	"surely":       "a function that recovers from a panic",
	"strays":       "unmatched messages: they belong to no call",
	"salvage":      "captureRaw: it keeps the raw bytes of a result",
	"sift":         "filterPinned",
	"exhibit":      "attachMedia: it attaches media for the model",
	"obituary":     "exitFailure: it says how a child process ended",
	"overhear":     "readStderr",
	"outgoingtrip": "headerTransport: it is an http.RoundTripper that adds headers",
	"takeback":     "cancelRequest: it sends notifications/cancelled",
	"sayings":      "notifications, the term of MCP",
	"barred":       "blocked: a tool that a pin blocks",
	"heirs":        "replacements: the new ids of reconfigured servers",
	"shelf":        "resourceCache",
	"seats":        "user sessions",
	"dress":        "addHeaders",
	"poke":         "wake",

	// The life of a run.
	"restlocked": "startGraceLocked: it starts the disconnect grace period",
	"staylocked": "stopGraceLocked: it ends the disconnect grace period",
	"unhold":     "decodeCheckpoint",
	"giveback":   "releaseClaim",
	"answertime": "InputTimeout, the name of the setting",
	"squeeze":    "trimToWindow: it trims a conversation to the context window",
	"raisable":   "a budget increase",
	"takeup":     "resumeClaimed: it claims a run and resumes it",
	"recalled":   "restored, from the log of a run",
	"speaker":    "modelStream: it writes a model's output as events",
	"synopsis":   "a summary",
	"makeroom":   "trimToWindow: it trims a conversation to the context window",
	"tellroom":   "trimToWindow: it trims a conversation to the context window",
	"wishof":     "queryOf: it returns a search query",

	// Encoders and limits of the API.
	"tellings": "sharedEncoders",
	"telling":  "sharedEncoder",
	"onceeach": "rejectDuplicateHeaders",

	// The event log.
	"entomb":    "writeTombstone",
	"entombed":  "deleted, with a tombstone",
	"rouse":     "wake",
	"bury":      "deleteRun",
	"mend":      "recoverDisk: it makes the log writable again after the disk was full",
	"keephouse": "expireLoop: it applies the retention",
	"parking":   "parkRecord",

	// Tests.
	"chronicle": "recordingLog: it records the operations on a log",
	"house":     "fixture",
	"houses":    "fixtures",
	"doors":     "API formats",

	// The process.
	"givebackbinary": "nothing: returning memory is the operator's choice with GOMEMLIMIT",
	"haste":          "shutdownStages",
	"surplus":        "OverLimit: a connection over the limit",
	"peopled":        "an identity is configured",
}

// wordExceptions lists the files that may use a replaced word, such as a glossary that
// explains it.
var wordExceptions = map[string][]string{
	"docs/glossary.md":                  nil, // nil allows every word
	"internal/importtest/words_test.go": nil,
}

// wordFiles has the extensions of the files that people read.
var wordFiles = []string{".go", ".md", ".yaml", ".yml", ".sh", ".js", ".html", ".css", ".toml"}

func TestReplacedWordsAreAbsent(t *testing.T) {
	read := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "node_modules", "testdata"}, d.Name()) || strings.HasPrefix(d.Name(), ".venv") {
				return filepath.SkipDir
			}
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil || !slices.Contains(wordFiles, filepath.Ext(name)) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		checkWords(t, filepath.ToSlash(name), string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 500 {
		t.Errorf("read %d files, want at least 500", read)
	}
}

// checkWords reports the replaced words in a file and in its name, each once per line.
func checkWords(t *testing.T, name, text string) {
	t.Helper()
	allowed, listed := wordExceptions[name]
	if listed && allowed == nil {
		return
	}
	lines := append([]string{name}, strings.Split(text, "\n")...)
	for number, line := range lines {
		for _, word := range wordsOf(line) {
			if instead, replaced := replacedWords[word]; replaced && !slices.Contains(allowed, word) {
				t.Errorf("%s:%d: got the replaced word %q, want %s", name, number, word, instead)
			}
		}
	}
}

var namePart = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

// wordsOf returns the words of a line in lower case: whole identifiers and, if they have
// several, their parts.
func wordsOf(line string) []string {
	var words []string
	isNoLetter := func(r rune) bool { return (r < 'a' || 'z' < r) && (r < 'A' || 'Z' < r) }
	for id := range strings.FieldsFuncSeq(line, isNoLetter) {
		words = append(words, strings.ToLower(id))
		if id[1:] == strings.ToLower(id[1:]) {
			continue // one word
		}
		if parts := namePart.FindAllString(id, -1); len(parts) > 1 {
			for _, part := range parts {
				words = append(words, strings.ToLower(part))
			}
		}
	}
	slices.Sort(words)
	return slices.Compact(words)
}

func TestWordsOfSplitsIdentifiers(t *testing.T) {
	for line, want := range map[string]string{
		"k.keepHouse()":      "house k keep keephouse",
		"type Keeper struct": "keeper struct type",
		"// a placeholder":   "a placeholder",
		"a_keeper.go":        "a go keeper",
	} {
		if got := strings.Join(wordsOf(line), " "); got != want {
			t.Errorf("wordsOf(%q) = %q, want %q", line, got, want)
		}
	}
}
