#!/bin/sh
# The scenarios for servers of the public conformance suite that say something of /mcp,
# against the demo. The others call tools, prompts and resources of the suite's own, which
# answerd does not have: tools-call-*, elicitation-*, input-required-result-*,
# json-schema-2020-12, http-custom-header-server-validation, server-stateless
# (23 of its 28 checks pass; 4 need such tools, and one minds that the SDK answers
# prompts/list with an empty list), resources-*, prompts-*, completion-complete; tasks-* and
# sep-2640-* are extensions; server-sse-polling is for event stores. What those do is
# tested in internal/api. run.sh has installed what this needs.
set -eu
cd "$(dirname "$0")"
case $(uname -m) in aarch64) arch=arm64 ;; *) arch=x64 ;; esac
node=node_modules/node-linux-$arch/bin/node
suite=node_modules/@modelcontextprotocol/conformance/dist/index.js
out=$(mktemp -d)
go build -o "$out/answerd" ../../../cmd/server
ADDR=127.0.0.1:0 "$out/answerd" demo >"$out/log" 2>&1 &
demo=$!
trap 'kill $demo 2>/dev/null; wait $demo 2>/dev/null || true; rm -rf "$out"' EXIT
url=
for _ in $(seq 100); do
	url=$(sed -n 's/.*curl -N \([^ ]*\)\/answer\/stream.*/\1/p' "$out/log" | head -1)
	[ -z "$url" ] || break
	sleep 0.1
done
[ -n "$url" ] || { cat "$out/log"; exit 1; }

failed=0
for scenario in server-initialize server-session-lifecycle logging-set-level ping tools-list \
	server-sse-multiple-streams dns-rebinding-protection caching http-header-validation; do
	if "$node" "$suite" server --url "$url/mcp" --scenario "$scenario" -o "$out/results" >"$out/scenario" 2>&1; then
		echo "passed: $scenario"
	else
		cat "$out/scenario"
		failed=1
	fi
done
exit "$failed"
