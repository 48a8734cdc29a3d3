#!/usr/bin/env bash
# Installs the chart in a cluster of its own, made by kind, and waits until every pod is ready: with
# placeholder secrets, the chart's NATS server, and addresses that do not exist. It prints the time from
# helm install to ready, and "SKIP: reason" where it cannot run.
set -euo pipefail
cd "$(dirname "$0")/../.."
skip() { printf 'SKIP: %s\n' "$*"; exit 0; }
for tool in kind kubectl docker; do
	command -v "$tool" >/dev/null || skip "there is no $tool"
done
docker info >/dev/null 2>&1 || skip 'no Docker engine answers'
cluster=answerd-test-$$
config=$(mktemp)
trap 'kind delete cluster --name "$cluster" >/dev/null 2>&1; rm -f "$config"' EXIT
docker build -q --build-arg VERSION=cluster-test -t answerd:cluster-test . || skip 'the image cannot be built: its base images are not here'
kind create cluster --name "$cluster" --kubeconfig "$config" --wait 120s || skip 'kind cannot start a cluster'
kind load docker-image --name "$cluster" answerd:cluster-test
export KUBECONFIG=$config
begun=$(date +%s)
go run helm.sh/helm/v3/cmd/helm@v3.22.0 install answerd deploy/helm/answerd --namespace answerd --create-namespace \
	--set image.tag=cluster-test,image.pullPolicy=Never,nats.enabled=true,settings.DEFAULT_MODEL_ID=stand-in
kubectl -n answerd rollout status statefulset/answerd-nats --timeout 180s
kubectl -n answerd rollout status deployment/answerd --timeout 180s
echo "chart to ready: $(($(date +%s) - begun)) s"
