#!/bin/sh
# The client scenarios of the public conformance suite: both requirement sets, the
# extensions, and what came after the releases; and what applies of those for servers. Green means that exactly the
# scenarios of expected-failures.yml fail: one that fails besides is a fault, and one
# that passes must leave the list. It skips, with the reason, without Node.
set -eu
cd "$(dirname "$0")"
if ! command -v npm >/dev/null; then
	echo "skipped: Node is missing"
	exit 0
fi
# The suite needs Node 22, whatever there is. The package node would get it with an install script.
case $(uname -m) in aarch64) arch=arm64 ;; *) arch=x64 ;; esac
node=node_modules/node-linux-$arch/bin/node
suite=node_modules/@modelcontextprotocol/conformance/dist/index.js
# What is there may be of an older lock file, or half of an install that was cut off.
if ! cmp -s package-lock.json node_modules/.installed && npm ci --ignore-scripts --no-audit --no-fund; then
	cp package-lock.json node_modules/.installed
fi
if [ ! -x "$node" ] || [ ! -f "$suite" ]; then
	echo "skipped: npm could not install what package.json names"
	[ "${CI:-}" != true ] || exit 1 # a skipped suite looks like one that passes
	exit 0
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
go test -c -o "$out/client" . # which is the client where the suite starts it

failed=0
run() {
	printf '\n== %s\n' "$*"
	code=0
	"$node" "$suite" client --command "$out/client" --expected-failures expected-failures.yml -o "$out/results" "$@" >"$out/log" 2>&1 || code=$?
	# The whole log is only of interest where the suite did not get to its verdict.
	grep -q -e 'Baseline' -e 'OVERALL' "$out/log" || { cat "$out/log"; failed=1; }
	sed -n -e '/SUITE SUMMARY/,$p' -e '/^Test Results:/,$p' "$out/log"
	[ "$code" = 0 ] || failed=1
}
run --requirements 2025-11-25
run --requirements 2026-07-28
run --suite extensions
run --scenario json-schema-2020-12-preservation --spec-version 2026-07-28
printf '\n== the server that answerd is\n'
./server.sh || failed=1
exit "$failed"
