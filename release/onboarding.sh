#!/usr/bin/env bash
# Measures how long a newcomer waits for the first answer of the demo, and prints one line each, with the CPU
# time of the command, which depends less on what else the machine does:
#
#   clone   git clone and go run ./cmd/server demo, with an empty build cache; modules come from this
#           machine's module cache, so downloads over a network are not in the figure
#   clone again   the second start, with the build cache of the first
#   binary  a release archive is unpacked and started, in an environment without Go
#   chart   the binary with the environment of the chart: until it is ready, and until it has answered
#   image   docker run until the first answer, by docker/test.sh; skipped without a Docker engine
#
# PARTS="binary chart" measures these alone; clone and image take minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
demo=
cleanup() {
	[ -z "$demo" ] || kill -- "-$demo" 2>/dev/null || true
	chmod -R u+w "$work" # Go's module cache is read-only
	rm -rf "$work"
}
trap cleanup EXIT
now() { date +%s%N; }

# cpu_time prints the CPU time of a process and of its children that have ended, in milliseconds.
cpu_time() { # pid
	awk -v hz="$(getconf CLK_TCK)" '{print int(($14 + $15 + $16 + $17) * 1000 / hz)}' "/proc/$1/stat" 2>/dev/null || echo 0
}

# first_answer starts a demo with the command, in a process group of its own, asks it, and prints the
# milliseconds since $1.
first_answer() { # begun, name, command…
	local begun=$1 name=$2 url
	shift 2
	set -m
	"$@" >"$work/log" 2>&1 &
	demo=$!
	set +m
	until url=$(grep -om1 'http://[0-9.:]*/answer/stream' "$work/log"); do
		kill -0 "$demo" 2>/dev/null || { cat "$work/log"; exit 1; }
		sleep 0.02
	done
	until curl -sf -m 30 "${url%/stream}" -H 'Content-Type: application/json' -d '{"question": "What is 12.5 * 8?"}' 2>/dev/null | grep -qs '= 100'; do
		kill -0 "$demo" 2>/dev/null || { cat "$work/log"; exit 1; }
		sleep 0.02
	done
	printf '%s to first answer: %d ms, %d ms of CPU time\n' "$name" $((($(now) - begun) / 1000000)) "$(cpu_time "$demo")"
	kill -- "-$demo" && wait "$demo" 2>/dev/null || true
	demo=
}

go mod download
export ADDR=127.0.0.1:0
parts=" ${PARTS:-clone binary chart image} "

measure_clone() {
	local begun proxy
	proxy=file://$(go env GOMODCACHE)/cache/download
	begun=$(now)
	git clone -q --depth 1 "file://$root" "$work/clone"
	cd "$work/clone"
	export GOCACHE=$work/cache GOMODCACHE=$work/modules
	first_answer "$begun" clone env GOPROXY="$proxy" go run ./cmd/server demo
	first_answer "$(now)" 'clone again' env GOPROXY="$proxy" go run ./cmd/server demo
	unset GOCACHE GOMODCACHE
	cd "$root"
}

measure_binary() {
	local begun platform name
	platform=$(go env GOOS)/$(go env GOARCH) name=answerd_0.0.0-onboarding_$(go env GOOS)_$(go env GOARCH)
	release/build.sh 0.0.0-onboarding "$work/release" "$platform" >/dev/null
	begun=$(now)
	tar -xzf "$work/release/$name.tar.gz" -C "$work"
	first_answer "$begun" binary env -i ADDR=127.0.0.1:0 "$work/$name/answerd" demo
}

[[ $parts != *' clone '* ]] || measure_clone
[[ $parts != *' binary '* ]] || measure_binary
[[ $parts != *' chart '* ]] || go test ./cmd/server -count=1 -v -run '^TestManifestsStartAndAnswer$' | sed -n 's/^.*\(chart to .*\)/\1/p'
[[ $parts != *' image '* ]] || docker/test.sh | grep -E 'to first answer|^SKIP|^FAIL'
