#!/usr/bin/env bash
# Prints the Homebrew formula of a release: fill.sh SHA256SUMS
# Version and digests are those of the tarballs that the file lists, one of each machine.
set -euo pipefail
sums=${1:?usage: fill.sh SHA256SUMS}

# Prints the field of the one line about the tarball of a machine: 1 the digest, 2 the name.
field() {
  awk -v ends="-$1-linux.tar.gz" -v field="$2" '
    substr($2, length($2) - length(ends) + 1) == ends { print $field; found++ }
    END { exit found != 1 }' "$sums" || {
    echo "$sums does not list one tarball for $1" >&2
    exit 1
  }
}

name=$(field x86_64 2)
version=${name#vllm-sim-}
version=${version%-x86_64-linux.tar.gz}
test "$(field aarch64 2)" = "vllm-sim-$version-aarch64-linux.tar.gz"
x86_64=$(field x86_64 1)
aarch64=$(field aarch64 1)
sed -e '1,2d' -e "s/@VERSION@/$version/g; s/@SHA256_X86_64@/$x86_64/; s/@SHA256_AARCH64@/$aarch64/" \
  "$(dirname "$0")/vllm-sim.rb"
