#!/bin/sh
# The public MCP servers of package.json, driven by the tests that want them. It skips,
# with the reason, without Node.
set -eu
cd "$(dirname "$0")"
if ! command -v npm >/dev/null; then
	echo "skipped: Node is missing"
	exit 0
fi
# What is there may be of an older lock file, or half of an install that was cut off.
if ! cmp -s package-lock.json node_modules/.installed && npm ci --no-audit --no-fund; then
	cp package-lock.json node_modules/.installed
fi
if [ ! -d node_modules/@modelcontextprotocol ]; then
	echo "skipped: npm could not install what package.json names"
	exit 0
fi
ANSWERD_REAL_SERVERS=$PWD/node_modules
export ANSWERD_REAL_SERVERS
cd ../..
exec go test -count=1 -v -run '^TestRealServer' .
