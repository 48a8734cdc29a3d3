package demo

import (
	"fmt"
	"strings"
)

// ratesDate is the day for which the sample rates were made up.
const ratesDate = "2 November 2026"

// unit is one unit of measure or currency. A value x in it is x*factor+offset in the
// kind's base unit.
type unit struct {
	kind           string
	symbol         string
	factor, offset float64
}

// Kinds of units. Only units of one kind convert into each other.
const (
	length      = "length"
	mass        = "mass"
	volume      = "volume"
	temperature = "temperature"
	data        = "data size"
	currency    = "currency"
)

// unitTable has one unit a line: kind, symbol, factor, offset, other names. The
// currencies' factors are euros for one of them and samples, not quotations.
var unitTable = []struct {
	unit
	names string
}{
	{unit{length, "m", 1, 0}, "metre metres meter meters"},
	{unit{length, "km", 1000, 0}, "kilometre kilometres kilometer kilometers kms"},
	{unit{length, "cm", 0.01, 0}, "centimetre centimetres centimeter centimeters"},
	{unit{length, "mm", 0.001, 0}, "millimetre millimetres millimeter millimeters"},
	{unit{length, "mi", 1609.344, 0}, "mile miles"},
	{unit{length, "yd", 0.9144, 0}, "yard yards"},
	{unit{length, "ft", 0.3048, 0}, "foot feet"},
	{unit{length, "in", 0.0254, 0}, "inch inches"},
	{unit{length, "nmi", 1852, 0}, "nautical_mile nautical_miles"},
	{unit{mass, "kg", 1, 0}, "kilogram kilograms kilo kilos kgs"},
	{unit{mass, "g", 0.001, 0}, "gram grams"},
	{unit{mass, "mg", 1e-6, 0}, "milligram milligrams"},
	{unit{mass, "t", 1000, 0}, "tonne tonnes"},
	{unit{mass, "lb", 0.45359237, 0}, "lbs pound pounds"},
	{unit{mass, "oz", 0.028349523125, 0}, "ounce ounces"},
	{unit{mass, "st", 6.35029318, 0}, "stone stones"},
	{unit{volume, "l", 1, 0}, "litre litres liter liters"},
	{unit{volume, "ml", 0.001, 0}, "millilitre millilitres milliliter milliliters"},
	{unit{volume, "m3", 1000, 0}, "cubic_metre cubic_metres cubic_meter cubic_meters"},
	{unit{volume, "gal", 3.785411784, 0}, "gallon gallons"},
	{unit{volume, "pt", 0.473176473, 0}, "pint pints"},
	{unit{volume, "cup", 0.2365882365, 0}, "cups"},
	{unit{temperature, "°C", 1, 0}, "c celsius degc degrees_celsius centigrade"},
	{unit{temperature, "°F", 5.0 / 9, -160.0 / 9}, "f fahrenheit degf degrees_fahrenheit"},
	{unit{temperature, "K", 1, -273.15}, "kelvin kelvins"},
	{unit{data, "B", 1, 0}, "byte bytes"},
	{unit{data, "bit", 0.125, 0}, "bits"},
	{unit{data, "kB", 1e3, 0}, "kilobyte kilobytes"},
	{unit{data, "MB", 1e6, 0}, "megabyte megabytes"},
	{unit{data, "GB", 1e9, 0}, "gigabyte gigabytes"},
	{unit{data, "TB", 1e12, 0}, "terabyte terabytes"},
	{unit{data, "KiB", 1 << 10, 0}, "kibibyte kibibytes"},
	{unit{data, "MiB", 1 << 20, 0}, "mebibyte mebibytes"},
	{unit{data, "GiB", 1 << 30, 0}, "gibibyte gibibytes"},
	{unit{data, "TiB", 1 << 40, 0}, "tebibyte tebibytes"},
	{unit{currency, "EUR", 1, 0}, "euro euros €"},
	{unit{currency, "USD", 0.86, 0}, "dollar dollars us_dollar us_dollars $"},
	{unit{currency, "GBP", 1.14, 0}, "pound pounds sterling quid £"},
	{unit{currency, "JPY", 0.0056, 0}, "yen ¥"},
	{unit{currency, "CHF", 1.07, 0}, "franc francs"},
	{unit{currency, "CAD", 0.61, 0}, "canadian_dollar canadian_dollars"},
	{unit{currency, "AUD", 0.56, 0}, "australian_dollar australian_dollars"},
	{unit{currency, "CNY", 0.12, 0}, "yuan renminbi"},
	{unit{currency, "INR", 0.0097, 0}, "rupee rupees"},
	{unit{currency, "SEK", 0.091, 0}, "krona kronor"},
}

// unitsByName finds units by symbol or name, in lower case with one space between
// words. A name may be of two kinds: a pound is money and a weight.
var unitsByName = func() map[string][]unit {
	m := make(map[string][]unit)
	for _, row := range unitTable {
		for _, n := range append(strings.Fields(row.names), row.symbol) {
			n = strings.ReplaceAll(strings.ToLower(n), "_", " ")
			m[n] = append(m[n], row.unit)
		}
	}
	return m
}()

// findUnits is the units that name may mean; none if it is unknown.
func findUnits(name string) []unit {
	n := strings.Join(strings.Fields(strings.ToLower(name)), " ")
	n = strings.TrimSuffix(n, ".")
	if us := unitsByName[n]; us != nil {
		return us
	}
	return unitsByName[strings.TrimPrefix(strings.TrimPrefix(n, "degrees "), "°")]
}

// unitPair resolves both names to units of the same kind.
func unitPair(from, to string) (unit, unit, error) {
	fs, ts := findUnits(from), findUnits(to)
	if len(fs) == 0 {
		return unit{}, unit{}, fmt.Errorf("there is no unit or currency %q here", from)
	}
	if len(ts) == 0 {
		return unit{}, unit{}, fmt.Errorf("there is no unit or currency %q here", to)
	}
	for _, f := range fs {
		for _, t := range ts {
			if f.kind == t.kind {
				return f, t, nil
			}
		}
	}
	return unit{}, unit{}, fmt.Errorf("%s is a %s and %s a %s: they do not convert", fs[0].symbol, fs[0].kind, ts[0].symbol, ts[0].kind)
}
