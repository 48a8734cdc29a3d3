#!/bin/sh
# The public MCP servers of package.json (Node) and the servers in python/, written with FastMCP and the
# official Python SDK, driven by the tests that want them. What is missing is skipped with the reason.
set -eu
cd "$(dirname "$0")"
if command -v npm >/dev/null; then
	# What is there may be of an older lock file, or half of an install that was cut off.
	if ! cmp -s package-lock.json node_modules/.installed && npm ci --ignore-scripts --no-audit --no-fund; then
		cp package-lock.json node_modules/.installed
	fi
	if [ -d node_modules/@modelcontextprotocol ]; then
		export ANSWERD_REAL_SERVERS="$PWD/node_modules"
	else
		echo "skipped: npm could not install what package.json names"
	fi
else
	echo "skipped: Node is missing"
fi
# One virtual environment for each requirements file: the versions of FastMCP exclude each other.
if command -v python3 >/dev/null && python3 -c 'import venv, ensurepip' 2>/dev/null; then
	for requirements in python/*.txt; do
		env=python/.venv-$(basename "$requirements" .txt)
		if ! cmp -s "$requirements" "$env/.installed"; then
			if rm -rf "$env" && python3 -m venv "$env" && "$env/bin/pip" install -q --disable-pip-version-check --require-hashes -r "$requirements"; then
				cp "$requirements" "$env/.installed"
			else
				rm -rf "$env"
				echo "skipped: pip could not install $requirements"
			fi
		fi
	done
	export ANSWERD_REAL_PYTHON="$PWD/python"
	# uv does not read pip's settings.
	if [ -z "${SSL_CERT_FILE:-}" ] && [ -n "${PIP_CERT:-}" ]; then
		export SSL_CERT_FILE="$PIP_CERT"
	fi
	if [ -z "${UV_DEFAULT_INDEX:-}" ] && [ -n "${PIP_INDEX_URL:-}" ]; then
		export UV_DEFAULT_INDEX="$PIP_INDEX_URL"
	fi
else
	echo "skipped: Python with venv is missing"
fi
cd ../..
exec go test -count=1 -v -timeout 15m -run '^TestRealServer' .
