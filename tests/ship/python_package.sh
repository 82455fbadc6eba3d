#!/usr/bin/env bash
# The Python package around BINARY: a wheel, types, tests. Needs Python 3.11 and PyPI once.
set -euo pipefail
binary=$(realpath "${1:?usage: python_package.sh BINARY}")
cd "$(dirname "$0")/../../python"

cache=${VLLM_SIM_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/vllm-sim-gate}
venv=$cache/python-$(sha256sum requirements-test.txt | cut -c1-12)
if [ ! -x "$venv/bin/mypy" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements-test.txt
fi
# The wheel as a user installs it, apart from the tools.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wheel=$(python3 pack_wheel.py "$binary" "$work")
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$work/site" "$wheel"
"$venv/bin/mypy"
export PYTHONPATH=$work/site
"$venv/bin/python" -m pytest -q -p no:cacheprovider tests ../examples/pytest "${@:2}"
# Installed with --target, the plugin is found by its metadata.
"$venv/bin/python" ../tests/ship/server_per_test.py
