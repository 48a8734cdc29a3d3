package demo

import (
	"regexp"
	"strings"
	"time"
)

// zoneTable has one zone a line and the places that keep its time. Countries stand
// here only where one zone holds for nearly everybody.
const zoneTable = `
Europe/Rome Rome Milan Naples Turin Florence Venice Bologna Italy
Europe/London London Manchester Edinburgh Cambridge Oxford UK England Scotland
Europe/Paris Paris Lyon Marseille France
Europe/Berlin Berlin Munich Hamburg Frankfurt Cologne Germany
Europe/Madrid Madrid Barcelona Seville Spain
Europe/Lisbon Lisbon Porto
Europe/Amsterdam Amsterdam Rotterdam Netherlands
Europe/Brussels Brussels Belgium
Europe/Zurich Zurich Geneva Bern Switzerland
Europe/Vienna Vienna Austria
Europe/Prague Prague
Europe/Warsaw Warsaw Krakow Poland
Europe/Budapest Budapest Hungary
Europe/Athens Athens Greece
Europe/Stockholm Stockholm Sweden
Europe/Oslo Oslo Norway
Europe/Copenhagen Copenhagen Denmark
Europe/Helsinki Helsinki Finland
Europe/Dublin Dublin Ireland
Europe/Kyiv Kyiv Kiev Ukraine
Europe/Bucharest Bucharest Romania
Europe/Istanbul Istanbul Ankara
Europe/Moscow Moscow
America/New_York New_York NYC Boston Washington Miami Atlanta Philadelphia Detroit
America/Chicago Chicago Houston Dallas Austin
America/Denver Denver
America/Phoenix Phoenix
America/Los_Angeles Los_Angeles San_Francisco Seattle San_Diego Las_Vegas California
America/Toronto Toronto Montreal Ottawa
America/Vancouver Vancouver
America/Mexico_City Mexico_City
America/Sao_Paulo Sao_Paulo São_Paulo Rio_de_Janeiro
America/Argentina/Buenos_Aires Buenos_Aires Argentina
America/Bogota Bogota Bogotá
America/Lima Lima Peru
America/Santiago Santiago
Africa/Cairo Cairo Egypt
Africa/Lagos Lagos Nigeria
Africa/Nairobi Nairobi Kenya
Africa/Johannesburg Johannesburg Cape_Town South_Africa
Africa/Casablanca Casablanca Morocco
Asia/Tokyo Tokyo Osaka Kyoto Japan
Asia/Seoul Seoul Korea
Asia/Shanghai Shanghai Beijing Shenzhen China
Asia/Hong_Kong Hong_Kong
Asia/Taipei Taipei Taiwan
Asia/Singapore Singapore
Asia/Bangkok Bangkok Thailand
Asia/Jakarta Jakarta
Asia/Manila Manila Philippines
Asia/Kuala_Lumpur Kuala_Lumpur Malaysia
Asia/Ho_Chi_Minh Hanoi Saigon Vietnam
Asia/Kolkata Mumbai Delhi New_Delhi Bangalore Kolkata Chennai India
Asia/Karachi Karachi
Asia/Dhaka Dhaka
Asia/Dubai Dubai Abu_Dhabi
Asia/Riyadh Riyadh
Asia/Jerusalem Jerusalem Tel_Aviv Israel
Asia/Tehran Tehran
Australia/Sydney Sydney Melbourne Canberra
Australia/Brisbane Brisbane
Australia/Perth Perth
Pacific/Auckland Auckland Wellington New_Zealand
Pacific/Honolulu Honolulu Hawaii
Atlantic/Reykjavik Reykjavik Iceland
`

// place is somewhere that a text names. zone is empty for a place not in the table.
type place struct{ name, zone string }

// places finds the table's places by their name in lower case.
var places = func() map[string]place {
	m := make(map[string]place)
	for line := range strings.Lines(zoneTable) {
		fields := strings.Fields(line)
		for i := 1; i < len(fields); i++ {
			name := strings.ReplaceAll(fields[i], "_", " ")
			m[strings.ToLower(name)] = place{name, fields[0]}
		}
	}
	return m
}()

// How places are told in a text that the table does not know.
var (
	zoneName  = regexp.MustCompile(`\b(?:[A-Z][A-Za-z_]+(?:/[A-Za-z0-9_+-]+)+|UTC|GMT)\b`)
	placeWord = regexp.MustCompile(`\p{L}+`)
	// somewhere is a name after a preposition: capitals are what tells it.
	somewhere = regexp.MustCompile(`\b(?:in|at|for|of|near|about)\s+(\p{Lu}[\p{L}'-]*(?:\s+\p{Lu}[\p{L}'-]*)*)`)
)

// findPlace is the first place that text names: a zone itself, a place of the table,
// whatever its case, or any other name after a preposition.
func findPlace(text string) (place, bool) {
	for _, z := range zoneName.FindAllString(text, 8) {
		if _, err := time.LoadLocation(z); err == nil {
			return place{z, z}, true
		}
	}
	words := placeWord.FindAllString(text, -1)
	for i := range words {
		for n := min(3, len(words)-i); n > 0; n-- {
			if p, ok := places[strings.ToLower(strings.Join(words[i:i+n], " "))]; ok {
				return p, true
			}
		}
	}
	if m := somewhere.FindStringSubmatch(text); m != nil {
		return place{name: m[1]}, true
	}
	return place{}, false
}
