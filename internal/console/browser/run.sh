#!/bin/sh
# The console in a real browser. It skips, with the reason, where Node is missing;
# the tests themselves skip without Chromium, or without what npm could not install.
# Screenshots are written to shots/, or to SHOTS. Arguments are the test files to run; none: all.
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
[ -d node_modules/typescript ] || npm ci --ignore-scripts --no-audit --no-fund || echo "npm could not install what package.json names"
# The types that the page's comments give, as an editor would check them.
[ ! -d node_modules/typescript ] || node_modules/.bin/tsc -p tsconfig.json
[ $# -gt 0 ] || set -- ./*.test.js
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd ../../.. && go build -o "$tmp/answerd" ./cmd/server)
ANSWERD="$tmp/answerd" node --test --test-reporter=spec --test-concurrency=2 --test-timeout=300000 "$@"
