#!/bin/sh
# Clients of the native API, generated from api/openapi.yaml by the generators that people use.
# Each is compiled, and asks the demo a question (testdata). A generator whose language is not
# here is skipped, with the reason. ONLY=oapi-codegen runs one of them; ONLY=spring is the program of
# docs/clients/spring.md, which has no generated client.
set -eu
cd "$(dirname "$0")"
here=$PWD
oapi_codegen=github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2
oapi_codegen_needs="github.com/oapi-codegen/runtime@v1.8.0 go.yaml.in/yaml/v3@v3.0.4"
openapi_generator_go_needs=gopkg.in/validator.v2@v2.0.1
newtonsoft=/usr/lib/cli/Newtonsoft.Json-5.0/Newtonsoft.Json.dll # Debian's, for Mono
dependency_plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1

work=$(mktemp -d)
demo=
trap 'kill $demo 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cp ../openapi.yaml "$work/openapi.yaml"

go build -o "$work/answerd" ../../cmd/server
ADDR=127.0.0.1:0 LOG_LEVEL=info "$work/answerd" demo >"$work/log" 2>&1 &
demo=$!
tries=0
# The shell creates the log in the background, so it may be missing at first (-s).
while ! grep -qs '"msg":"listening"' "$work/log"; do
	tries=$((tries + 1))
	[ $tries -le 100 ] && kill -0 $demo || { cat "$work/log"; exit 1; }
	sleep 0.1
done
ANSWERD_URL=http://$(sed -n 's/.*"msg":"listening","addr":"\([^"]*\)".*/\1/p' "$work/log" | head -n 1)
export ANSWERD_URL
unset GOFLAGS # the generated clients are modules of their own

# The tools from PyPI and npm, installed once.
python=no node=no java=no
if python3 -m venv --help >/dev/null 2>&1; then
	if ! cmp -s requirements.txt .venv/.installed; then
		rm -rf .venv
		python3 -m venv .venv && .venv/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements.txt && cp requirements.txt .venv/.installed || true
	fi
	cmp -s requirements.txt .venv/.installed && python=yes || echo "pip could not install what requirements.txt names"
fi
PATH=$here/.venv/bin:$PATH
if command -v npm >/dev/null; then
	if ! cmp -s package-lock.json node_modules/.installed; then
		npm ci --ignore-scripts --no-audit --no-fund >"$work/npm" 2>&1 && cp package-lock.json node_modules/.installed || tail -n 5 "$work/npm"
	fi
	cmp -s package-lock.json node_modules/.installed && node=yes || echo "npm could not install what package.json names"
fi
command -v javac >/dev/null && command -v mvn >/dev/null && java=yes

# openapi_generator writes the client of one of its generators to $1/answerd.
openapi_generator() { # directory, generator, additional properties
	cat >"$1.config.yaml" <<-END
		generatorName: $2
		inputSpec: $work/openapi.yaml
		outputDir: $work/$1/answerd
		globalProperties: {apiTests: "false", modelTests: "false", apiDocs: "false", modelDocs: "false"}
		additionalProperties: {$3}
	END
	JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 openapi-generator-cli batch --fail-fast "$1.config.yaml"
}

# go_ask runs the Go program $1 with the client in the package answerd beside it.
go_ask() {
	cp "$here/testdata/$1/main.go" . && go mod tidy && go vet ./... && go run . >answer
}

# ts_ask compiles the TypeScript program $1 and runs it.
ts_ask() {
	cp "$here/testdata/$1" ask.ts && ln -s "$here/node_modules" node_modules &&
		node_modules/.bin/tsc --strict --target es2022 --module nodenext --skipLibCheck false --types node --outDir js ask.ts &&
		node js/ask.js >answer
}

generate_oapi_codegen() {
	# shellcheck disable=SC2086 # several modules
	mkdir answerd && go mod init ask && go get $oapi_codegen_needs &&
		go run "$oapi_codegen" -package answerd -generate types,client -o answerd/client.go "$work/openapi.yaml" && go_ask oapi-codegen
}
generate_go() {
	openapi_generator go go 'packageName: answerd, withGoMod: false' && go mod init ask && go get $openapi_generator_go_needs && go_ask openapi-generator-go
}
generate_java() {
	openapi_generator java java 'library: native, openApiNullable: false' && cp "$here/testdata/Ask.java" answerd/src/main/java/ && cd answerd &&
		mvn -q -B compile "$dependency_plugin:build-classpath" -Dmdep.outputFile=classpath && java -cp "target/classes:$(cat classpath)" Ask >../answer
}
# run_spring compiles the Java block of docs/clients/spring.md as it is there, and runs it.
run_spring() {
	mkdir -p src/main/java && cp "$here/testdata/spring/pom.xml" . &&
		sed -n '/^```java/,/^```/{/^```/d;p;}' "$here/../../docs/clients/spring.md" | sed "s|http://127.0.0.1:8080|$ANSWERD_URL|" >src/main/java/Ask.java &&
		mvn -q -B compile "$dependency_plugin:build-classpath" -Dmdep.outputFile=classpath && java -cp "target/classes:$(cat classpath)" Ask >output && grep -q '^final_answer ' output && head -n 1 output >answer
}
generate_typescript_fetch() {
	openapi_generator typescript-fetch typescript-fetch '' && ts_ask typescript-fetch.ts
}
generate_python() {
	openapi_generator python python '' && PYTHONPATH=answerd python -W error "$here/testdata/ask_python.py" >answer
}
generate_csharp() {
	if command -v dotnet >/dev/null; then
		openapi_generator csharp csharp 'library: httpclient, targetFramework: net8.0' && mkdir ask && cp "$here"/testdata/Ask.cs* ask && dotnet run --project ask >answer
		return
	fi
	# Without retries the client does not need Polly, which Debian does not have.
	openapi_generator csharp csharp 'library: httpclient, targetFramework: net48, supportsRetry: false' &&
		mcs -langversion:latest -out:ask.exe -r:$newtonsoft,System.Net.Http,System.ComponentModel.DataAnnotations,System.Runtime.Serialization \
			-recurse:'answerd/src/*.cs' "$here/testdata/Mono.cs" "$here/testdata/Ask.cs" && mono ask.exe >answer
}
generate_openapi_typescript() {
	"$here/node_modules/.bin/openapi-typescript" "$work/openapi.yaml" -o answerd.d.ts && ts_ask openapi-typescript.ts
}
generate_openapi_python_client() {
	openapi-python-client generate --path "$work/openapi.yaml" --output-path answerd_client --meta none >generated 2>&1 && cat generated && ! grep -i 'unable to process' generated &&
		PYTHONPATH=. python -W error "$here/testdata/ask_openapi_python_client.py" >answer
}

# client generates, compiles and asks with one client, if its languages are here.
client() { # name, function, reason why not or ""
	[ "${ONLY:-$1}" = "$1" ] || return 0
	if [ -n "$3" ]; then
		echo "skipped: $1: $3"
		return
	fi
	directory=$work/$(echo "${2#generate_}" | tr _ -)
	mkdir "$directory"
	begun=$(date +%s)
	if (cd "$directory" && $2) >"$directory.log" 2>&1 && grep -q 'calculate.*= 100' "$directory/answer"; then
		echo "ok: $1 ($(($(date +%s) - begun)) s): $(cat "$directory/answer")"
	else
		echo "FAILED: $1"
		tail -n 40 "$directory.log"
		touch "$work/failed"
	fi
}
without() { # yes or no, reason
	[ "$1" = yes ] || echo "$2"
}
jvm=$(without "$python" "Python is missing")
command -v java >/dev/null || jvm="Java is missing"
# Maven spends most of its time on downloads, so it does not wait for the others.
client openapi-generator-java generate_java "$(without "$java" "a JDK or Maven is missing")$jvm" &
maven=$!
client oapi-codegen generate_oapi_codegen ""
client openapi-generator-go generate_go "$jvm"
client openapi-generator-typescript-fetch generate_typescript_fetch "$(without "$node" "Node is missing")$jvm"
client openapi-generator-python generate_python "$jvm"
csharp=$jvm
command -v dotnet >/dev/null || { command -v mcs >/dev/null && [ -e $newtonsoft ]; } || csharp="dotnet is missing, and so is Mono with Debian's Newtonsoft.Json"
client openapi-generator-csharp generate_csharp "$csharp"
client openapi-typescript generate_openapi_typescript "$(without "$node" "Node is missing")"
client openapi-python-client generate_openapi_python_client "$(without "$python" "Python is missing")"
client spring run_spring "$(without "$java" "a JDK or Maven is missing")"
wait $maven
! grep -e '"level":"ERROR"' -e panic "$work/log"
[ ! -e "$work/failed" ]
