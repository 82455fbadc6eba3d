#!/usr/bin/env bash
# Step of action.yml: puts the program on PATH, from INPUT_PATH or from a release.
set -euo pipefail

fail() {
  echo "::error title=vllm-sim::$1" >&2
  exit 1
}

case "$(uname -s)-$(uname -m)" in
  Linux-x86_64) machine=x86_64 ;;
  Linux-aarch64 | Linux-arm64) machine=aarch64 ;;
  *) fail "no release for $(uname -s) on $(uname -m), only for Linux on x86_64 and arm64" ;;
esac

bin=$(mktemp -d "${RUNNER_TEMP:?}/vllm-sim.XXXXXX")/bin
mkdir "$bin"
program=$bin/vllm-sim

unpack() {
  case "$1" in
    *.whl) unzip -p "$1" '*.data/scripts/vllm-sim' >"$program" ;;
    *.tar.gz) tar -xzf "$1" -O --wildcards '*/vllm-sim' >"$program" ;;
    *) cp -- "$1" "$program" ;;
  esac
}

if [ -n "${INPUT_PATH:-}" ]; then
  # A pattern may name the one wheel of a folder.
  mapfile -t files < <(compgen -G "$INPUT_PATH" || true)
  [ "${#files[@]}" = 1 ] || fail "path: $INPUT_PATH names ${#files[@]} files; it must name one"
  unpack "${files[0]}"
else
  version=${INPUT_VERSION:?}
  [[ $version =~ ^[0-9A-Za-z.+-]+$ ]] || fail "version: $version is not a version"
  name=vllm-sim-$version-$machine-linux.tar.gz
  release=https://github.com/${ACTION_REPOSITORY:-vllm-sim/vllm-sim}/releases/download/v$version
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  fetch() { curl --proto '=https' --tlsv1.2 --retry 3 -fsSL -o "$work/$1" "$release/$1"; }
  fetch "$name" || fail "cannot download $release/$name"
  wanted=${INPUT_SHA256:-}
  if [ -z "$wanted" ]; then
    fetch SHA256SUMS || fail "cannot download $release/SHA256SUMS"
    wanted=$(awk -v name="$name" '$2 == name { print $1 }' "$work/SHA256SUMS")
  fi
  digest=$(sha256sum "$work/$name" | cut -d ' ' -f 1)
  [ "$digest" = "$wanted" ] || fail "$name has the digest $digest, expected ${wanted:-one of SHA256SUMS}"
  unpack "$work/$name"
fi

chmod +x "$program"
"$program" --version || fail "the program does not run on this machine"
echo "$bin" >>"$GITHUB_PATH"
echo "program=$program" >>"$GITHUB_OUTPUT"
