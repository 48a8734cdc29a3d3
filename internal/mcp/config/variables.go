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

// variableName matches the name of a shell variable, and bareVariable matches $NAME. errNested is the error for
// ${A:-${B}}. errNotVariable is the error for any other ${ that does not start a variable.
var (
	variableName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	bareVariable   = regexp.MustCompile(`\$[A-Za-z_][A-Za-z0-9_]*`)
	errNotVariable = errors.New("has a ${ that is not ${NAME} or ${NAME:-default}")
	errNested      = errors.New("has a ${ inside of another ${…}, which is not supported")
)

// lookupVariable returns the value of ${inside}, for all forms that expandVariables lists. It returns an error if an
// environment variable has neither a value nor a default, except in a disabled server (reportMissing).
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
		return r.lookupVariable("HOME")
	}

	if id, ok := strings.CutPrefix(inside, "input:"); ok {
		return r.inputValue(id), nil
	}
	if file, ok := strings.CutPrefix(inside, "file:"); ok {
		text, err := readText(file, r.getenv)
		if err != nil {
			return "", r.reportMissing(err)
		}
		return strings.TrimSpace(text), nil
	}
	name, fallback, hasFallback := strings.Cut(strings.TrimPrefix(inside, "env:"), ":-")
	if !variableName.MatchString(name) {
		return "", errNotVariable
	}

	value := r.getenv(name)
	switch {
	case value != "":
		return value, nil
	case !hasFallback:
		return "", r.reportMissing(fmt.Errorf("needs the environment variable %s, which is not set", name))
	}
	return fallback, nil
}

// inputVariable returns the name of the environment variable for an input of VS Code: the input's id in upper case,
// with _ in place of all characters other than letters and digits.
func inputVariable(id string) string {
	return strings.Map(func(c rune) rune {
		isLetterOrDigit := 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !isLetterOrDigit {
			return '_'
		}
		return c
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

// readInputs stores the inputs' defaults in v.reader.inputs, for inputValue. v is the member inputs of the file.
func (v jsonValue) readInputs() error {
	items, err := v.readArray()
	if err != nil {
		return err
	}
	for _, item := range items {
		id, defaultValue, err := item.readInput()
		if err != nil {
			return err
		}
		v.reader.inputs[id] = defaultValue
	}
	return nil
}

// readInput returns an input's id and its default value; "" if it has none.
func (v jsonValue) readInput() (id, defaultValue string, _ error) {
	members, err := v.readObject()
	if err != nil {
		return "", "", err
	}
	for _, m := range members {
		switch m.name {
		case "id":
			id, err = m.readString()
		case "default":
			defaultValue, err = m.readOptionalString()
		}
		if err != nil {
			return "", "", err
		}
	}
	return id, defaultValue, nil
}

// warnInputs adds one warning for all inputs together, because answerd cannot ask for their values as VS Code does. The
// warning names the environment variables that would set inputs without a value, maxNamedInputs of them at most. v is
// the member inputs of the file.
func (v jsonValue) warnInputs() {
	text := "the values of inputs are not asked for; they are those of environment variables"
	var variables []string
	for _, id := range v.reader.unset[:min(len(v.reader.unset), maxNamedInputs)] {
		variables = append(variables, fmt.Sprintf("%.80s", inputVariable(id)))
	}
	if len(variables) > 0 {
		text += ", and empty without: set " + strings.Join(variables, ", ")
	}
	v.reader.warn(v.errorf("%s", text).Error())
}

const maxNamedInputs = 10 // more would make the warning too long to read

// readText returns the content of a regular file of at most maxFileSize bytes. It replaces a leading ~/ by the home
// directory. It checks that the file is regular before it opens the file, because opening a pipe could block.
func readText(name string, getenv func(string) string) (string, error) {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		name = filepath.Join(getenv("HOME"), rest)
	}
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
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
