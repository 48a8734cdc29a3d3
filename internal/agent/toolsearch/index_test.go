package toolsearch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/mcp/catalog"
)

// The figures that docs/internals/performance.md gives. The bounds are a little below what is measured, so
// that a change that loses tools shows. What is missed has no word of its wish: nothing
// that goes by words finds "boot VM" in "start a virtual machine".
func TestSearchFindsTheRightOfAThousandTools(t *testing.T) {
	docs, wishes := readCatalogue(t, 1000)
	index := New(docs)
	const limit = 8
	first, found := 0, 0
	for _, w := range wishes {
		rank := -1
		for i, doc := range index.Find(w.query, limit) {
			if docs[doc].Name == w.tool {
				rank = i
				break
			}
		}
		switch {
		case rank == 0:
			first++
			fallthrough
		case rank > 0:
			found++
		default:
			t.Logf("not found: %q for %s", w.query, w.tool)
		}
	}

	t.Logf("of %d wishes %d first, %d among the first %d", len(wishes), first, found, limit)
	if first*100 < len(wishes)*60 || found*100 < len(wishes)*80 {
		t.Errorf("recall at %d is %d as the first and %d in all of %d, want at least 60 %% and 80 %%", limit, first, found, len(wishes))
	}
}

func namesOf(docs []catalog.Tool, found []int) string {
	var out []string
	for _, i := range found {
		out = append(out, docs[i].Name)
	}
	return strings.Join(out, " ")
}

func TestFindRanksByTheWordsThatMatter(t *testing.T) {
	docs := []catalog.Tool{
		{Name: "get_item", Description: strings.Repeat("It gets an item with its price and stock and more. ", 40)},
		{Name: "getPrice", Description: "The price of an item."},
		{Name: "x1", Title: "Repository settings", Server: "forge"},
		{Name: "x2", Server: "forge", InputSchema: json.RawMessage(`{"type":"object","properties":{"filter":{"anyOf":[{"type":"object","properties":{"postcode":{"description":"Where a parcel goes"}}}]}}}`)},
		{Name: "x3", Description: "no JSON", InputSchema: json.RawMessage(`{`)},
		{Name: "x4", Description: "列出所有客户订单"},
	}

	index := New(docs)
	for query, want := range map[string]string{
		"price":            "getPrice get_item",
		"PRICES":           "getPrice get_item",
		"repo":             "x1",
		"parcels":          "x2",
		"post code":        "x2", // begins like it
		"forge repository": "x1 x2",
		"客户":               "x4",
		"submarine":        "",
		"the of a":         "",
		"":                 "",
	} {
		if got := namesOf(docs, index.Find(query, 10)); got != want {
			t.Errorf("%q: got %q, want %q", query, got, want)
		}
	}

	if got := index.Find("item", 1); len(got) != 1 {
		t.Errorf("limit 1 gave %d, want 1", len(got))
	}
	if got := New(nil).Find("item", 8); len(got) != 0 {
		t.Errorf("nothing gave %v, want 0", got)
	}
}

func TestWordsOfNamesAreSplitAndStemmed(t *testing.T) {
	for text, want := range map[string]string{
		"create_issue": "creat issu", "createIssue": "creat issu", "Creating issues": "creat issu",
		"HTTPServer getURLs userIDs": "http server get url user id", "s3-bucket.v2": "s3 bucket v2",
		"running filed files categories status": "run fil fil category status",
		"東京の天気 API":                             "東京 京の の天 天気 api", "\xff\xfebad\xffX": "bad x", "météo": "météo",
		"This was by which of its uses?": "",
	} {
		if got := strings.Join(splitWords(text), " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// What a server says of its tools must cost neither memory nor time without end.
func TestHugeToolIsReadUpToItsBound(t *testing.T) {
	huge := strings.Repeat("word ", 100*maxWords) + "end"
	docs := []catalog.Tool{{Name: "a", Description: huge, InputSchema: json.RawMessage(strings.Repeat(`{"items":`, 1000) + "1" + strings.Repeat("}", 1000))}}
	index := New(docs)
	if len(index.Find("word", 1)) != 1 || len(index.Find("end", 1)) != 0 || len(splitWords(huge)) != maxWords {
		t.Errorf("Find(word) = %v, Find(end) = %v, %d words, want 1, 0 and %d", index.Find("word", 1), index.Find("end", 1), len(splitWords(huge)), maxWords)
	}
}

func FuzzFind(f *testing.F) {
	for _, text := range []string{"create issue", "URLs", "天気ー", "\xff", "ǅ", "aÄb", "ing", "ss", ""} {
		f.Add(text, text)
	}
	f.Fuzz(func(t *testing.T, text, query string) {
		docs := []catalog.Tool{{Name: text, Title: query, Description: text + query, InputSchema: json.RawMessage(text)}, {Name: query}, {}}
		index := New(docs)
		for _, i := range index.Find(query, 2) {
			if i < 0 || i >= len(docs) {
				t.Errorf("Find gave %d, want an index below %d", i, len(docs))
			}
		}
		if w := splitWords(query); len(w) > 0 && len(index.Find(query, 1)) == 0 {
			t.Errorf("Find(%q) = nothing, want the document with its words %q", query, w)
		}
	})
}

func BenchmarkNew(b *testing.B) {
	docs, _ := readCatalogue(b, 1000)
	b.ReportAllocs()
	for b.Loop() {
		New(docs)
	}
}

func BenchmarkFind(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("%d tools", n), func(b *testing.B) {
			docs, wishes := readCatalogue(b, n)
			index := New(docs)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				index.Find(wishes[i%len(wishes)].query, 8)
			}
		})
	}
}
