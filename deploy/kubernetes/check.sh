#!/usr/bin/env bash
# Lints the Helm chart, renders it with its defaults and with everything switched on, and compares the
# first with answerd.yaml (-update writes it). Validates all manifests against the schemas of
# Kubernetes, unknown fields refused; the schemas come with the validator, so no cluster is asked.
set -euo pipefail
cd "$(dirname "$0")"
helm() { go run helm.sh/helm/v3/cmd/helm@v3.22.0 "$@"; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

helm lint --strict ../helm/answerd
{
	echo '# The Helm chart with its defaults. Do not edit: deploy/kubernetes/check.sh -update'
	helm template --kube-version 1.33.0 answerd ../helm/answerd --namespace answerd | sed 's/^metadata:$/metadata:\n  namespace: answerd/'
} >"$dir/answerd.yaml"
if [ "${1:-}" = -update ]; then cp "$dir/answerd.yaml" answerd.yaml; fi
diff -u answerd.yaml "$dir/answerd.yaml" || { echo 'answerd.yaml is not what the chart renders: deploy/kubernetes/check.sh -update'; exit 1; }
helm template --kube-version 1.33.0 all ../helm/answerd --set autoscaling.enabled=false,persistence.enabled=true,ingress.enabled=true,ingress.tlsSecret=tls \
	--set-string existingSecret=mine,image.tag=1 >"$dir/all.yaml"
helm template --kube-version 1.33.0 monitored ../helm/answerd --set serviceMonitor.enabled=true | grep -q '^kind: ServiceMonitor$'
if helm template --kube-version 1.33.0 wrong ../helm/answerd --set replicas=none >"$dir/wrong" 2>&1; then
	echo 'the chart accepts replicas=none'
	exit 1
fi

command -v python3 >/dev/null && python3 -m venv --help >/dev/null 2>&1 || { echo 'SKIP: no Python with venv'; exit 0; }
python3 -m venv "$dir/venv" && "$dir/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.txt ||
	{ echo 'SKIP: kubernetes-validate cannot be installed'; exit 0; }
"$dir/venv/bin/kubernetes-validate" --strict namespace.yaml nats.yaml answerd.yaml "$dir/all.yaml"
