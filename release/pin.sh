#!/usr/bin/env bash
# Names base images and actions by their content, which cannot change under a name:
#
#   release/pin.sh         check that every action is named by a commit; list images without a digest
#   release/pin.sh images  print the build arguments BUILD_IMAGE and RUN_IMAGE with the current digests
#   release/pin.sh write   write digests of images into the Dockerfiles, the compose file and the manifest
#                          of NATS, and commits of actions into the workflows
#
# images and write ask the registries (docker buildx), write also the repositories of the actions (git).
# The release workflow builds with what "images" prints, and attaches it to the release.
set -euo pipefail
cd "$(dirname "$0")/.."
files=(Dockerfile docker-compose.yml deploy/docker/*.Dockerfile deploy/kubernetes/nats.yaml)
workflows=(.github/workflows/*.yml)

# image_names prints the images that files name, with a digest if they have one. Names with ${ are
# arguments, and answerd is what we build.
image_names() {
	grep -hE '^ARG [A-Z]+_IMAGE=|^FROM |image:|_IMAGE: ' "${files[@]}" |
		grep -oE '[a-z0-9][a-z0-9./_-]*:[A-Za-z0-9._-]+(@sha256:[0-9a-f]{64})?' | grep -vE '^answerd:' | sort -u
}

# digest prints the digest of an image's index, which stands for all its platforms.
digest() {
	docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$1" | grep -xE 'sha256:[0-9a-f]{64}' ||
		{ echo "the digest of $1 cannot be read" >&2; return 1; }
}

# actions prints the actions of the workflows: owner/name@reference.
actions() { grep -hoE 'uses: [^ ]+' "${workflows[@]}" | sed 's/uses: //' | sort -u; }

case ${1:-check} in
check)
	if actions | grep -vE '@[0-9a-f]{40}$'; then
		echo 'name these actions by a commit: release/pin.sh write'
		exit 1
	fi
	image_names | grep -v @sha256: | sed 's/^/no digest, resolved at the release: /' || true
	;;
images)
	for name in BUILD_IMAGE RUN_IMAGE; do
		image=$(sed -n "s/^ARG $name=//p" Dockerfile)
		echo "$name=${image%@*}@$(digest "${image%@*}")"
	done
	;;
write)
	for image in $(image_names); do
		to=${image%@*}@$(digest "${image%@*}")
		sed -i "s|${image//./\\.}\(@sha256:[0-9a-f]*\)\?|$to|g" "${files[@]}"
		echo "$to"
	done
	# A line is "uses: owner/name@commit # v1.2.3"; the comment says which tag to ask for.
	while read -r action tag; do
		commit=$(git ls-remote "https://github.com/${action%@*}" "refs/tags/$tag^{}" "refs/tags/$tag" | sort -k2 -r | head -n 1 | cut -f1)
		[[ $commit =~ ^[0-9a-f]{40}$ ]] || { echo "${action%@*} has no tag $tag" >&2; exit 1; }
		sed -i "s|$action # $tag|${action%@*}@$commit # $tag|" "${workflows[@]}"
		echo "${action%@*}@$commit # $tag"
	done < <(grep -hoE 'uses: [^ ]+ # v[0-9.]+' "${workflows[@]}" | sed -E 's/uses: ([^ ]+) # (.*)/\1 \2/' | sort -u)
	;;
*)
	echo 'release/pin.sh [check|images|write]' >&2
	exit 2
	;;
esac
