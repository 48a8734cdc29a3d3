#!/usr/bin/env bash
# Builds the image, starts docker-compose.yml's own services and asks a question over
# /answer and /answer/stream. Prints "SKIP: reason" and exits 0 where no engine can run.
#
# It needs no registry and no network: BUILD_IMAGE is made of this machine's Go, shell,
# certificates and module cache, RUN_IMAGE is scratch, Jaeger is docker/collector.go.
# A running Docker engine is used as it is. Else, for root, a dockerd is started in
# namespaces of its own: its firewall rules, mounts and processes end with them.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '== %s\n' "$*"; }
skip() { printf 'SKIP: %s\n' "$*"; exit 0; }
fail() { printf 'FAIL: %s\n' "$*" >&2; exit 1; }
# wait_for SECONDS COMMAND…: until it succeeds.
wait_for() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 1
  done
}

for tool in docker go tar curl; do
  command -v "$tool" >/dev/null || skip "there is no $tool"
done
if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
elif command -v docker-compose >/dev/null; then
  compose=(docker-compose)
else
  skip "there is neither docker compose nor docker-compose"
fi

# own_engine runs this script once more, as process 1 of new namespaces.
own_engine() {
  [ "$(id -u)" = 0 ] || skip "no Docker engine answers, and only root could start one"
  local tool why dir code=0
  for tool in dockerd unshare ip; do
    command -v "$tool" >/dev/null || skip "no Docker engine answers, and there is no $tool to start one"
  done
  why=$(unshare --net --mount --pid --fork --mount-proc true 2>&1) ||
    skip "no Docker engine answers, and none can be started without namespaces: $why"
  go mod download # now, because in there is no network
  dir=$(mktemp -d)
  ENGINE_DIR=$dir unshare --net --mount --pid --fork --kill-child --mount-proc "$0" || code=$?
  rm -rf "$dir"
  # The kernel keeps the groups of processes that are gone.
  find /sys/fs/cgroup -depth -type d -path "*/answerd-test*" -exec rmdir {} + 2>/dev/null || true
  exit $code
}

start_engine() {
  ip link set lo up
  export DOCKER_HOST=unix://$ENGINE_DIR/docker.sock
  dockerd --host "$DOCKER_HOST" --data-root "$ENGINE_DIR/data" --exec-root "$ENGINE_DIR/exec" \
    --pidfile "$ENGINE_DIR/pid" --cgroup-parent /answerd-test >"$ENGINE_DIR/log" 2>&1 &
  wait_for 30 docker info || skip "dockerd does not start here: $(tail -n 1 "$ENGINE_DIR/log")"
}

if [ -n "${ENGINE_DIR:-}" ]; then
  start_engine
elif docker info >/dev/null 2>&1; then
  go mod download
else
  own_engine
fi

work=$(mktemp -d)
# Nobody's .env or settings: the test is of the file's own defaults.
: >"$work/no.env"
compose+=(--env-file "$work/no.env")
unset LLM_BASE_URL LLM_API_KEY DEFAULT_MODEL_ID LLM_FIRST_BYTE_TIMEOUT GOFLAGS COMMIT
image=answerd-test/answerd
export ANSWERD_IMAGE=$image BUILD_IMAGE=answerd-test/build RUN_IMAGE=scratch
export GOPROXY=file:///proxy VERSION=docker-test
export COMPOSE_PROJECT_NAME=answerd-test COMPOSE_FILE=docker-compose.yml:docker/compose.test.yml
export ANSWERD_PORT=${ANSWERD_PORT:-18080} JAEGER_PORT=${JAEGER_PORT:-18686}
answerd=http://127.0.0.1:$ANSWERD_PORT
jaeger=http://127.0.0.1:$JAEGER_PORT

cleanup() {
  local code=$?
  if [ $code -ne 0 ]; then "${compose[@]}" logs --tail 40 || true; fi
  "${compose[@]}" down --volumes --remove-orphans >/dev/null 2>&1 || true
  docker image rm -f "$image" answerd-test/build answerd-test/collector >/dev/null 2>&1 || true
  chmod -R u+w "$work" # Go's module cache is read-only
  rm -rf "$work"
}
trap cleanup EXIT

say "a receiver in Jaeger's place"
CGO_ENABLED=0 GOPROXY= go build -o "$work/image/collector" docker/collector.go
tar -c -C "$work/image" collector |
  docker import --change 'ENTRYPOINT ["/collector"]' - answerd-test/collector >/dev/null
why=$(docker run --rm --entrypoint /no-such-file answerd-test/collector 2>&1) || true
case $why in
  *no-such-file*) ;; # as far as that, a container runs
  *) skip "the engine cannot run a container: ${why##*$'\n'}" ;;
esac

say "a build image of this machine's Go"
GOPROXY=file://$(go env GOMODCACHE)/cache/download GOMODCACHE=$work/modules go mod download
root=$work/root
mkdir -p "$root/tmp" "$root/etc/ssl/certs"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" 2>/dev/null ||
  : >"$root/etc/ssl/certs/ca-certificates.crt"
for program in /bin/sh "$(go env GOROOT)/bin/go"; do
  # What it is linked with; a static program is linked with nothing.
  libs=$(ldd "$program" 2>/dev/null | grep -o '/[^ ]*') || continue
  xargs cp -L --parents -t "$root" <<<"$libs"
done
mkdir -p "$root/bin" && cp -L /bin/sh "$root/bin/sh"
tar -cf "$work/base.tar" -C "$root" .
tar -rf "$work/base.tar" -C "$(go env GOROOT)" --transform 's,^\.,usr/local/go,S' \
  --exclude ./test --exclude ./api --exclude ./doc .
tar -rf "$work/base.tar" -C "$work/modules/cache/download" --transform 's,^\.,proxy,S' .
docker import --change 'ENV PATH=/usr/local/go/bin:/bin' "$work/base.tar" $BUILD_IMAGE >/dev/null

say "docker compose build"
"${compose[@]}" build >"$work/build.log" 2>&1 || { tail -n 40 "$work/build.log"; fail "the image does not build"; }
docker image ls "$image"

say "the image"
docker run --rm "$image" version | tee "$work/version"
grep -q docker-test "$work/version" || fail "the version is not in the binary"
code=0
docker run --rm "$image" >"$work/open" 2>&1 || code=$?
[ $code = 2 ] || { cat "$work/open"; fail "open to everybody, it exits with $code instead of 2"; }
id=$(docker create "$image") && docker cp "$id:/licences" "$work/licences" && docker rm "$id" >/dev/null
for file in LICENSE THIRD_PARTY_NOTICES; do
  [ -s "$work/licences/$file" ] || fail "the image lacks /licences/$file"
done
[ "$(docker image inspect -f '{{.Config.User}}' "$image")" = 65532:65532 ] || fail "it runs as root"

say "a log in a volume"
volume=answerd-test-data
kept=$(docker run -d -v "$volume:/data" -e EVENTS_URL=file:/data -e LLM_BASE_URL=http://127.0.0.1:9/v1 -e AUTH_INSECURE_ALLOW_ANONYMOUS=true "$image")
kept_listens() { docker logs "$kept" 2>&1 | grep -q '"msg":"listening"'; }
wait_for 30 kept_listens || { docker logs "$kept"; fail "it cannot write to a new volume at /data"; }
docker rm -f "$kept" >/dev/null
docker volume rm "$volume" >/dev/null

say "a demo of one container"
begun=$(date +%s%N)
demo=$(docker run -d -p "127.0.0.1:$ANSWERD_PORT:8080" -e ADDR=0.0.0.0:8080 -e AUTH_INSECURE_ALLOW_ANONYMOUS=true "$image" demo)
demo_answers() {
  curl -sS --fail -m 30 "$answerd/answer" -H 'Content-Type: application/json' -d '{"question":"What is 12.5 * 8?"}' | grep -q '= 100'
}
until demo_answers 2>/dev/null; do
  [ $(($(date +%s%N) - begun)) -lt 60000000000 ] || { docker logs "$demo"; fail "the demo does not answer"; }
  sleep 0.02
done
echo "image to first answer: $((($(date +%s%N) - begun) / 1000000)) ms"
docker rm -f "$demo" >/dev/null

say "docker compose up"
"${compose[@]}" up -d
healthy() {
  local id; id=$("${compose[@]}" ps -q "$1")
  [ "$(docker inspect -f '{{.State.Health.Status}}' "$id")" = healthy ]
}
for service in answerd iam mcp model; do
  wait_for 60 healthy $service || fail "$service is not healthy"
done

say "a question"
question='{"question":"What time is it in Tokyo?"}'
ask() { curl -sS --fail-with-body -m 30 -H 'Content-Type: application/json' -d "$question" "$@"; }
# answerd may have found the MCP server away at first; it tries again by itself.
used_tool() { ask "$answerd/answer" >"$work/answer" && grep -q '"tool_names":\["current_time"\]' "$work/answer"; }
wait_for 60 used_tool || { cat "$work/answer"; fail "/answer did not use the tool"; }
cat "$work/answer"; echo
ask -N "$answerd/answer/stream" >"$work/stream"
grep '^event: ' "$work/stream" | uniq -c
for event in start tool_call tool_result final_answer; do
  grep -q "^event: $event\$" "$work/stream" || fail "/answer/stream has no $event"
done

say "its trace"
trace=$(sed -E 's/.*"trace_id":"([0-9a-f]{32})".*/\1/' "$work/answer")
traced() { curl -sS --fail -m 5 "$jaeger/api/traces/$trace" >"$work/trace" && grep -q '"POST /answer"' "$work/trace"; }
wait_for 30 traced || fail "trace $trace is not at $jaeger"
cat "$work/trace"
for span in tool_calling_loop llm_invoke tool_call; do
  grep -q "\"$span\"" "$work/trace" || fail "the trace has no span $span"
done

say "the end"
id=$("${compose[@]}" ps -q answerd)
"${compose[@]}" stop answerd >/dev/null 2>&1
[ "$(docker inspect -f '{{.State.ExitCode}}' "$id")" = 0 ] || fail "SIGTERM did not end it with 0"
say "PASS"
