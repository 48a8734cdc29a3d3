#!/bin/sh
# The OpenAPI documents against the service that they describe: schemathesis makes up requests,
# good and bad, for every operation, and checks every answer. It skips, with the reason,
# where Python or its package cannot be had. EXAMPLES is how many requests an operation
# gets of each kind.
set -eu
cd "$(dirname "$0")"
if ! python3 -m venv --help >/dev/null 2>&1; then
	echo "skipped: Python is missing"
	exit 0
fi
if ! cmp -s requirements.txt .venv/.installed; then
	rm -rf .venv
	if ! { python3 -m venv .venv && .venv/bin/python -m pip install -q --require-hashes -r requirements.txt; } >/dev/null 2>&1; then
		rm -rf .venv
		echo "skipped: pip could not install what requirements.txt names"
		exit 0
	fi
	cp requirements.txt .venv/.installed
fi
work=$(mktemp -d)
demo=
trap 'kill $demo 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
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
addr=$(sed -n 's/.*"msg":"listening","addr":"\([^"]*\)".*/\1/p' "$work/log" | head -n 1)
# webhooks.yaml has no operations of the service.
for document in ../openapi.yaml ../openapi/agui.yaml ../openapi/aisdk.yaml ../openapi/mcp.yaml ../openapi/openai.yaml; do
	.venv/bin/schemathesis --config-file schemathesis.toml run "$document" -u "http://$addr" -n "${EXAMPLES:-8}"
done
# A fault of ours would be here, whatever was answered.
! grep -e '"level":"ERROR"' -e panic "$work/log"
