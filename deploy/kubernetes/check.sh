#!/usr/bin/env bash
# Validates every manifest against the schemas of Kubernetes, unknown fields refused. The
# schemas come with the validator, so no cluster is asked.
set -euo pipefail
cd "$(dirname "$0")"

command -v python3 >/dev/null && python3 -m venv --help >/dev/null 2>&1 || { echo 'SKIP: no Python with venv'; exit 0; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir" && "$dir/bin/pip" install --quiet --disable-pip-version-check kubernetes-validate==1.37.0 ||
	{ echo 'SKIP: kubernetes-validate cannot be installed'; exit 0; }
for manifest in *.yaml; do
	[ "$manifest" = kustomization.yaml ] || "$dir/bin/kubernetes-validate" --strict "$manifest"
done
