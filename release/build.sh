#!/usr/bin/env bash
# Builds the files of a release: release/build.sh VERSION DIRECTORY OS/ARCH…
#
# For each platform an archive with the binary, LICENSE, the licences of all modules, the README, docs and the OpenAPI documents;
# then the bill of materials, the Helm chart, a Homebrew formula, and SHA256SUMS over all of them.
# It uploads nothing. DOWNLOAD_URL is where the archives will be, for the formula.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?version, such as 0.1.0} out=${2:?directory} && shift 2
[ $# -gt 0 ] || { echo 'name at least one platform, such as linux/amd64'; exit 2; }
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || { echo "$version is not a semantic version"; exit 2; }
mkdir -p "$out"
out=$(cd "$out" && pwd)
commit=$(git rev-parse HEAD)
time=$(git log -1 --format=%ct) # so that two builds of a commit have the same bytes

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go test ./internal/supply -count=1 -run 'Notices|BOM' -notices "$work/THIRD_PARTY_NOTICES" -sbom "$out/answerd_$version.cdx.json" -version "v$version"

for platform in "$@"; do
	os=${platform%/*} arch=${platform#*/} name=answerd
	[ "$os" != windows ] || name=answerd.exe
	dir=$work/answerd_${version}_${os}_$arch
	mkdir "$dir"
	CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -tags grpcnotrace -trimpath -buildvcs=false \
		-ldflags "-s -w -X main.version=$version -X main.commit=$commit" -o "$dir/$name" ./cmd/server
	cp LICENSE README.md CHANGELOG.md "$work/THIRD_PARTY_NOTICES" "$dir/"
	git archive HEAD docs api/openapi.yaml api/openapi | tar -x -C "$dir" # the README, errors and log lines name them
	archive=$out/$(basename "$dir").tar.gz
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" -C "$work" -c "$(basename "$dir")" | gzip -n >"$archive"
	echo "$archive"
done

sed -e "s/^version: .*/version: $version/" -e "s/^appVersion: .*/appVersion: $version/" deploy/helm/answerd/Chart.yaml >"$work/Chart.yaml"
mkdir "$work/chart" && cp -r deploy/helm/answerd "$work/chart/" && cp "$work/Chart.yaml" "$work/chart/answerd/"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" -C "$work/chart" -c answerd | gzip -n >"$out/answerd-chart-$version.tgz"

# formula prints the Homebrew formula for the archives that were built.
formula() {
	cat <<EOF
class Answerd < Formula
  desc "Agent backend: ask over HTTP, a language model answers with the tools of MCP servers"
  homepage "${HOMEPAGE:-https://example.com/answerd}"
  version "$version"
  license "Apache-2.0"
EOF
	local os arch file
	for os in darwin linux; do
		for arch in arm64 amd64; do
			file=answerd_${version}_${os}_$arch.tar.gz
			[ -e "$out/$file" ] || continue
			printf '  %s do\n    %s do\n      url "%s/%s"\n      sha256 "%s"\n    end\n  end\n' \
				"$([ $os = darwin ] && echo on_macos || echo on_linux)" "$([ $arch = arm64 ] && echo on_arm || echo on_intel)" \
				"${DOWNLOAD_URL:-https://example.com/download}" "$file" "$(sha256sum "$out/$file" | cut -d' ' -f1)"
		done
	done
	cat <<'EOF'
  def install
    bin.install "answerd"
  end
  test do
    assert_match version.to_s, shell_output("#{bin}/answerd version")
  end
end
EOF
}
formula >"$out/answerd.rb"
(cd "$out" && rm -f SHA256SUMS && sha256sum -- answerd* >SHA256SUMS)
