package skel

import (
	"strings"
	"unicode"

	"github.com/plumb-cni/plumb/v2/pkg/types"
)

// These are the limits of shorten in bytes. Words that are not quoted can be paths, lists of directories and parts of commands.
const (
	maxText   = 64 << 10
	maxWord   = 1000
	maxQuoted = 400 // names of hosts and options of DHCP have up to 255 bytes
	shortWord = 100 // what is left of a longer word
)

// shorten returns the text of an error or a warning with long words shortened. An error quotes values of the configuration, which
// can have megabytes, and a runtime writes the error to its log and to the events of a pod.
func shorten(text string) string {
	if len(text) <= maxQuoted {
		return text
	}
	var b strings.Builder
	for len(text) > 0 && b.Len() < maxText {
		n := strings.IndexFunc(text, unicode.IsSpace)
		if n < 0 {
			n = len(text)
		}
		b.WriteString(shortenWord(text[:n]))
		end := min(n+1, len(text)) // all white space in these texts is ASCII, or in a quoted value
		b.WriteString(text[n:end])
		text = text[end:]
	}
	if len(text) > 0 {
		b.WriteString("…")
	}
	return strings.ToValidUTF8(b.String(), "")
}

// shortenWord keeps the beginning of a long word, and what follows a quoted value, such as the comma in "value",.
func shortenWord(word string) string {
	limit := maxWord
	if strings.HasPrefix(strings.TrimLeft(word, "(["), `"`) {
		limit = maxQuoted
	}
	if len(word) <= limit {
		return word
	}
	end := word[len(word)-3:]
	end = end[strings.LastIndexFunc(end, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) })+1:]
	return word[:shortWord] + "…" + end
}

// shortenProblem returns the problem with shortened texts. It keeps the command.
func shortenProblem(p types.Problem) types.Problem {
	p.Object, p.Want, p.Got, p.Msg, p.Advice = shorten(p.Object), shorten(p.Want), shorten(p.Got), shorten(p.Msg), shorten(p.Advice)
	return p
}
