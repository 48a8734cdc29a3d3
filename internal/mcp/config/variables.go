package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// expandVariables replaces ${NAME} and ${NAME:-default} in s, and the forms of other MCP hosts:
//
//	${env:NAME}                       Cursor, VS Code, Windsurf
//	${input:ID}                       VS Code
//	${file:PATH}                      Windsurf
//	${userHome}, ${workspaceFolder}, ${workspaceFolderBasename}, ${pathSeparator}, ${/}   Cursor, VS Code
//	$NAME                             Gemini CLI; stays as it is if the variable is not set
//
// As in a shell, an empty variable counts as unset. A variable's value is not expanded again. Otherwise anyone who can
// set one variable could use it to read other variables or a file.
func (r *fileReader) expandVariables(s string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		out.WriteString(bareVariable.ReplaceAllStringFunc(before, func(name string) string {
			if value := r.getenv(name[1:]); value != "" {
				return value
			}
			return name
		}))
		if !found {
			return out.String(), nil
		}
		inside, after, isClosed := strings.Cut(rest, "}")
		switch {
		case !isClosed:
			return "", errNotVariable
		case strings.Contains(inside, "${"): // Cut stopped at the inner }, so the outer one would become text
			return "", errNested
		}
		value, err := r.lookupVariable(inside)
		if err != nil {
			return "", err
		}
		out.WriteString(value)
		s = after
	}
}

// bareVariable matches $NAME. errNested is the error for ${A:-${B}}. errNotVariable is the error for any other ${ that
// does not start a variable.
var (
	bareVariable   = regexp.MustCompile(`\$[A-Za-z_][A-Za-z0-9_]*`)
	errNotVariable = errors.New("has a ${ that is not ${NAME} or ${NAME:-default}")
	errNested      = errors.New("has a ${ inside of another ${…}, which is not supported")
)

// lookupVariable returns the value of ${inside}, for all forms that expandVariables lists. It returns an error if an
// environment variable has neither a value nor a default.
func (r *fileReader) lookupVariable(inside string) (string, error) {
	switch inside {
	case "/", "pathSeparator":
		return string(filepath.Separator), nil
	case "workspaceFolder", "workspaceFolderBasename":
		dir, err := os.Getwd()
		if err != nil {
			return "", errors.New("needs the working directory, which cannot be found")
		}
		if inside == "workspaceFolderBasename" {
			dir = filepath.Base(dir)
		}
		return dir, nil
	case "userHome":
		if home := r.getenv("USERPROFILE"); home != "" {
			return home, nil
		}
		inside = "HOME" // continue with the environment variable
	}

	if id, ok := strings.CutPrefix(inside, "input:"); ok {
		return r.inputValue(id), nil
	}
	if file, ok := strings.CutPrefix(inside, "file:"); ok {
		text, err := readText(file, r.getenv)
		return strings.TrimSpace(text), err
	}
	name, fallback, hasFallback := strings.Cut(strings.TrimPrefix(inside, "env:"), ":-")
	if !isVariableName(name) {
		return "", errNotVariable
	}

	value := r.getenv(name)
	switch {
	case value != "":
		return value, nil
	case !hasFallback:
		return "", fmt.Errorf("needs the environment variable %s, which is not set", name)
	}
	return fallback, nil
}

// inputVariable returns the name of the environment variable for an input of VS Code: the input's id in upper case,
// with _ in place of all characters other than letters and digits.
func inputVariable(id string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
			return c
		}
		return '_'
	}, strings.ToUpper(id))
}

// inputValue returns an input's value: that of its environment variable, or else its default, or else "". If the value
// is "", it adds the input to r.unset for warnInputs.
func (r *fileReader) inputValue(id string) string {
	if value := r.getenv(inputVariable(id)); value != "" {
		return value
	}
	value := r.inputs[id]
	if value == "" && !slices.Contains(r.unset, id) {
		r.unset = append(r.unset, id)
	}
	return value
}

// readInputs stores the inputs' defaults in v.reader.inputs. VS Code asks its user for the inputs' values, and answerd
// cannot.
func (v jsonValue) readInputs() error {
	items, err := v.readArray()
	if err != nil {
		return err
	}
	for _, item := range items {
		id, value, err := item.readInput()
		if err != nil {
			return err
		}
		v.reader.inputs[id] = value
	}
	return nil
}

// readInput returns an input's id and its default. value is "" if the input has no default.
func (v jsonValue) readInput() (id, value string, _ error) {
	members, err := v.readObject()
	if err != nil {
		return "", "", err
	}
	for _, m := range members {
		switch m.name {
		case "id":
			id, err = m.readString()
		case "default":
			value, err = m.readOptionalString()
		}
		if err != nil {
			return "", "", err
		}
	}
	return id, value, nil
}

// warnInputs adds one warning for all inputs together, because answerd cannot ask for their values.
func (v jsonValue) warnInputs() {
	text := "the values of inputs are not asked for; they are those of environment variables"
	if len(v.reader.unset) > 0 {
		names := make([]string, len(v.reader.unset))
		for i, id := range v.reader.unset {
			names[i] = fmt.Sprintf("%.80s", inputVariable(id))
		}
		text += ", and empty without: set " + strings.Join(names[:min(len(names), 10)], ", ")
	}
	v.reader.warn(v.errorf("%s", text).Error())
}

// isVariableName reports whether s can be the name of a shell variable.
func isVariableName(s string) bool {
	for i, r := range s {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', r == '_':
		case '0' <= r && r <= '9' && i > 0:
		default:
			return false
		}
	}
	return s != ""
}

// readText returns the content of a regular file of at most maxFileSize bytes. It replaces a leading ~/ by the home
// directory. It checks that the file is regular before it opens the file, because opening a pipe could block.
func readText(name string, getenv func(string) string) (string, error) {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		name = filepath.Join(getenv("HOME"), rest)
	}
	fi, err := os.Stat(name)
	if err != nil || !fi.Mode().IsRegular() {
		return "", errors.New("needs a file that does not exist or cannot be read")
	}
	f, err := os.Open(name)
	if err != nil {
		return "", errors.New("needs a file that cannot be read")
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil || len(text) > maxFileSize {
		return "", fmt.Errorf("needs a file that cannot be read, or has more than %d bytes", maxFileSize)
	}
	return string(text), nil
}
