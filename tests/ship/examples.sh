#!/usr/bin/env bash
# Runs the examples with BINARY, those whose language is there. examples/pytest runs in python_package.sh.
set -euo pipefail
VLLM_SIM=$(realpath "${1:?usage: examples.sh BINARY}")
export VLLM_SIM
cd "$(dirname "$0")/../../examples"
if command -v node >/dev/null; then
  node --test node
else
  echo 'examples/node: not run, there is no node'
fi
if command -v go >/dev/null; then
  (cd go && go vet ./... && go test -count=1 ./...)
else
  echo 'examples/go: not run, there is no go'
fi
