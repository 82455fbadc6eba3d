#!/usr/bin/env bash
# The npm package around BINARY: its tests, then installed from its tarballs and used in node:test, and,
# where npm can install them, in vitest, jest and TypeScript. Says what it left out and why.
set -euo pipefail
binary=$(realpath "${1:?usage: npm_package.sh BINARY}")
cd "$(dirname "$0")/../../npm"

skip() { echo "SKIP: npm/$1, $2"; }
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  skip test 'there is no node with npm'
  exit 0
fi
if [ "$(node -p 'process.versions.node.split(".")[0]')" -lt 20 ]; then
  skip test "node is older than 20: $(node --version)"
  exit 0
fi

VLLM_SIM_BINARY=$binary node --test --test-timeout=120000 test/*.test.js

# As a user installs it, apart from this repository.
unset VLLM_SIM_BINARY
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
program=$(python3 pack_program.py "$binary" "$work")
main=$work/$(npm pack --silent --pack-destination "$work")
ls -l "$work"
export npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false

mkdir "$work/plain"
cp ../tests/ship/npm/retry.node.test.mjs "$work/plain"
(
  cd "$work/plain"
  npm init --yes >/dev/null
  # The registry has nothing to add.
  npm install --offline --silent "$main" "$program"
  test "$(npx --offline vllm-sim --version)" = "$("$binary" --version)"
  node --test retry.node.test.mjs
)

pages=$(realpath ../docs)
cp -r ../tests/ship/npm "$work/runners"
cd "$work/runners"
# Without a registry an installation tries for minutes.
if ! npm ping --fetch-retries=0 --fetch-timeout=10000 >npm.log 2>&1 || ! npm install --silent "$main" "$program" >npm.log 2>&1; then
  skip vitest,jest,typescript "npm cannot install them: $(grep -m 1 'npm error' npm.log)"
  exit 0
fi
npx vitest run retry.vitest.test.js
# The tutorial, as pasted: its test fails, with the log of its server, and passes behind the change.
mkdir tutorial
(
  cd tutorial
  ln -s ../node_modules .
  awk '/^## 2/ { on = 1 } /^```$/ { code = 0 } code; /^```sh$/ { code = on }' "$pages/vitest.md" >tutorial.sh
  bash tutorial.sh >tutorial.log 2>&1
  grep -q 'vllm-sim log:' tutorial.log
  grep -q '1 failed' tutorial.log
  grep -q '1 passed' tutorial.log
)
npx jest retry.jest.test.cjs
for resolution in nodenext bundler; do
  module=$([ "$resolution" = bundler ] && echo esnext || echo nodenext)
  npx tsc --noEmit --strict --target es2022 --module "$module" --moduleResolution "$resolution" types.ts
done
echo 'npm: passed'
