#!/usr/bin/env bash
# A dry run of a release: builds it for this machine's platform, twice, and looks into the archive. Other
# platforms are built by the release itself; each takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
release/pin.sh check
platform=$(go env GOOS)/$(go env GOARCH)
release/build.sh 0.0.0-check "$dir/one" "$platform"
release/build.sh 0.0.0-check "$dir/two" "$platform" >/dev/null
diff "$dir/one/SHA256SUMS" "$dir/two/SHA256SUMS" || { echo 'two builds of the same commit differ'; exit 1; }
(cd "$dir/one" && sha256sum --check --quiet SHA256SUMS)
tar -xzf "$dir/one/answerd_0.0.0-check_${platform/\//_}.tar.gz" -C "$dir"
unpacked=$dir/answerd_0.0.0-check_${platform/\//_}
"$unpacked/answerd" version | grep -q '0.0.0-check'
for file in LICENSE README.md CHANGELOG.md THIRD_PARTY_NOTICES docs/troubleshooting.md docs/internals/mcp-transport.md api/openapi.yaml; do
	[ -s "$unpacked/$file" ] || { echo "the archive lacks $file"; exit 1; }
done
grep -q 'sha256 "[0-9a-f]\{64\}"' "$dir/one/answerd.rb"
if release/build.sh 1.0 "$dir/wrong" "$platform" >"$dir/refused"; then
	echo '1.0 was taken for a semantic version'
	exit 1
fi
echo "release: $(ls "$dir/one" | tr '\n' ' ')"
