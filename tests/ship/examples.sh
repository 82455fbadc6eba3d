#!/usr/bin/env bash
# Runs the examples with BINARY, those whose tools are there, and says what it left out and why.
# examples/pytest runs in python_package.sh.
set -euo pipefail
VLLM_SIM=$(realpath "${1:?usage: examples.sh BINARY}")
export VLLM_SIM
cd "$(dirname "$0")/../../examples"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

skip() { echo "SKIP: examples/$1, $2"; }
has() { command -v "$1" >/dev/null; }

if has node; then
  node --test node/*.mjs
else
  skip node 'there is no node'
fi
if ! has npm; then
  skip vitest 'there is no npm'
elif cp -r vitest "$work/vitest" && ! (cd "$work/vitest" && npm install --no-audit --no-fund --silent); then
  skip vitest 'npm cannot install vitest and openai'
else
  (cd "$work/vitest" && npm test)
fi
if has go; then
  (cd go && go vet ./... && go test -count=1 ./...)
else
  skip go 'there is no go'
fi
if ! has mvn; then
  skip junit 'there is no mvn'
elif cp -r junit "$work/junit" && ! (cd "$work/junit" && mvn -q -B test-compile dependency:resolve >"$work/mvn.log" 2>&1); then
  skip junit "mvn cannot compile it: $(grep -m1 ERROR "$work/mvn.log")"
else
  (cd "$work/junit" && mvn -q -B test)
  echo 'examples/junit: passed'
fi

# The Job of Kubernetes and that of GitHub Actions run this script against a server.
"$VLLM_SIM" --model demo --host 127.0.0.1 --port 0 --request-history 100 \
  --ready-file "$work/ready.json" --log-level warn &
server=$!
trap 'kill "$server"; rm -rf "$work"' EXIT
until [ -e "$work/ready.json" ]; do sleep 0.05; done
url=$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$work/ready.json")
OPENAI_BASE_URL=$url/v1 python3 kubernetes/drill.py
if has actionlint; then
  actionlint github-actions/drill.yml
else
  skip github-actions/drill.yml 'there is no actionlint; its script ran'
fi
if has docker && docker info >/dev/null 2>&1; then
  docker compose -f compose/compose.yaml config --quiet
  skip compose 'only read: it needs the image'
else
  skip compose 'there is no Docker'
fi
