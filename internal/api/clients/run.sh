#!/bin/sh
# The clients that people use, as npm has them: the golden files of the API formats, and whole
# services, read by the real thing. It skips, with the reason, without Node.
set -eu
cd "$(dirname "$0")"
if ! command -v npm >/dev/null; then
	echo "skipped: Node is missing"
	exit 0
fi
# What is there may be of an older lock file, or half of an install that was cut off. No
# package's own scripts run.
install() {
	if ! cmp -s "$1/package-lock.json" "$1/node_modules/.installed" && npm ci --prefix "$1" --ignore-scripts --no-audit --no-fund; then
		cp "$1/package-lock.json" "$1/node_modules/.installed"
	fi
	cmp -s "$1/package-lock.json" "$1/node_modules/.installed"
}
if ! install .; then
	echo "skipped: npm could not install what package.json names"
	exit 0
fi
# CopilotKit is large, and has other versions of what the others need.
install copilotkit || echo "skipped: npm could not install CopilotKit"
export COPILOTKIT_TELEMETRY_DISABLED=true DO_NOT_TRACK=1
node --test --test-reporter=dot ./*golden.test.js
# The examples of the documents run here too, Python's where its package can be had.
python=$PWD/node_modules/.python/bin/python
if cmp -s requirements.txt node_modules/.python/.installed || {
	rm -rf node_modules/.python
	python3 -m venv node_modules/.python && "$python" -m pip install -q --require-hashes -r requirements.txt && cp requirements.txt node_modules/.python/.installed
} >/dev/null 2>&1; then
	export ANSWERD_PYTHON="$python"
fi
ANSWERD_TEST_LONG=1 go test -count 1 -v -run 'TestClients|TestDocumentExamplesRun' ../../../cmd/server ..
