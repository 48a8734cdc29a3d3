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
cat >"$dir/all-values.yaml" <<'EOF'
image: {tag: "1"}
replicas: 1
autoscaling: {enabled: false}
persistence: {enabled: true}
settings: {SHUTDOWN_DELAY: 10s, ALLOWED_HOSTS: ask.example.com, MAX_BODY_BYTES: 10485760, TLS_CERT_FILE: /etc/answerd-files/tls.crt, TLS_KEY_FILE: /etc/answerd-files/tls.key}
existingSecret: mine
ingress: {enabled: true, tlsSecret: tls, annotations: {nginx.ingress.kubernetes.io/proxy-read-timeout: "60"}}
nats: {enabled: true}
extraVolumes: [{name: files, configMap: {name: files}}]
extraVolumeMounts: [{name: files, mountPath: /etc/answerd-files, readOnly: true}]
networkPolicy:
  extraEgress: [{to: [{podSelector: {}}], ports: [{port: 8000}]}]
  extraIngress: [{from: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: http}]}]
EOF
helm template --kube-version 1.33.0 all ../helm/answerd -f "$dir/all-values.yaml" >"$dir/all.yaml"
for want in '^kind: Ingress$' '^kind: PersistentVolumeClaim$' '^kind: StatefulSet$' '^  EVENTS_URL: "nats://all-nats:4222"$' 'port: 8000$' '^    app.kubernetes.io/name: nats$' \
	'^  MAX_BODY_BYTES: "10485760"$' '^  ALLOWED_HOSTS: "all,.*,ask.example.com"$' '^  SHUTDOWN_DELAY: "10s"$' 'mountPath: /etc/answerd-files$' '203.0.113.0/24$' 'proxy-read-timeout: "60"$' \
	'path: /healthz, port: http, scheme: HTTPS' 'path: /readyz, port: http, scheme: HTTPS' 'backend-protocol: HTTPS$'; do
	grep -q -- "$want" "$dir/all.yaml" || { echo "the chart with everything switched on lacks $want"; exit 1; }
done
if twice=$(sed -n '/^  MCP_CONFIG_PATH/,/^---/s/^  \([A-Z_]*\):.*/\1/p' "$dir/all.yaml" | sort | uniq -d | grep .); then
	echo "the chart writes settings twice: $twice"
	exit 1
fi
helm template --kube-version 1.33.0 monitored ../helm/answerd --set serviceMonitor.enabled=true | grep -q '^  jobLabel: app.kubernetes.io/name$' ||
	{ echo 'the ServiceMonitor does not make the job answerd, which the rules in deploy/prometheus name'; exit 1; }
for wrong in replicas=none settings.ADDR=:8081 persistence.enabled=true; do
	if helm template --kube-version 1.33.0 wrong ../helm/answerd --set "$wrong" >"$dir/wrong" 2>&1; then
		echo "the chart accepts $wrong"
		exit 1
	fi
done

if command -v kubectl >/dev/null; then
	kubectl kustomize . >"$dir/kustomized.yaml"
	for kind in Namespace Secret Deployment StatefulSet NetworkPolicy HorizontalPodAutoscaler; do
		grep -q "^kind: $kind$" "$dir/kustomized.yaml" || { echo "the kustomization lacks a $kind"; exit 1; }
	done
fi

command -v python3 >/dev/null && python3 -m venv --help >/dev/null 2>&1 || { echo 'SKIP: no Python with venv'; exit 0; }
python3 -m venv "$dir/venv" && "$dir/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.txt ||
	{ echo 'SKIP: kubernetes-validate cannot be installed'; exit 0; }
"$dir/venv/bin/kubernetes-validate" --strict namespace.yaml nats.yaml answerd.yaml "$dir/all.yaml"
