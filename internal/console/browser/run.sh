#!/bin/sh
# The console in a real browser. It skips, with the reason, where Node is missing;
# the tests themselves skip without Chromium, or without what npm could not install.
# What the pages look like is kept in shots/, for people to look at.
set -eu
cd "$(dirname "$0")"
if ! command -v node >/dev/null; then
	echo "skipped: Node is missing"
	exit 0
fi
if [ "$(node -p 'parseInt(process.versions.node)')" -lt 20 ]; then
	echo "skipped: Node is older than 20, which the test runner needs"
	exit 0
fi
[ -d node_modules/typescript ] || npm ci --no-audit --no-fund || echo "npm could not install what package.json names"
# The types that the page's comments give, as an editor would check them.
[ ! -d node_modules/typescript ] || node_modules/.bin/tsc -p tsconfig.json
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd ../../.. && go build -o "$tmp/answerd" ./cmd/server)
ANSWERD="$tmp/answerd" node --test --test-reporter=spec --test-concurrency=2 --test-timeout=300000 ./*.test.js
