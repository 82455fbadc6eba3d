#!/bin/sh
# Judges the scheduler by vLLM's own: run.sh [COUNT [FIRST_SEED [CLASS...]]]. Needs 6 GB below target/lab once.
set -eu
cd "$(dirname "$0")/../.."
lab=$PWD/target/lab
count=${1:-20} first=${2:-0}
[ $# -gt 2 ] && shift 2 || set --
version=0.33.0
if [ ! -e "$lab/ready-$version" ]; then
    mkdir -p "$lab"
    python3 -m venv "$lab/venv"
    "$lab/venv/bin/pip" install -q -r lab/requirements.txt
    "$lab/venv/bin/pip" download -q --no-deps -d "$lab" "vllm==$version"
    # Compiled parts need a GPU; the scheduler does not use them.
    unzip -q -o "$lab/vllm-$version"-*.whl -x '*.so' -d "$lab/vllm"
    sed -i "s/^Version: $version\$/Version: $version+cpu/" "$lab/vllm/vllm-$version.dist-info/METADATA"
    rm "$lab/vllm-$version"-*.whl
    touch "$lab/ready-$version"
fi
cargo build --quiet --release -p vllm-sim-engine --example step_log
work=$lab/workloads
rm -rf "$work" && mkdir -p "$work"
python3 lab/scheduler/workloads.py "$work" "$count" "$first" "$@"
export VLLM_SRC="$lab/vllm" MODEL="$PWD/tests/fixtures/tiny-llama"
find "$work" -name '*.json' -print0 | sort -z | xargs -0 -P "$(nproc)" -n 200 \
    "$lab/venv/bin/python" lab/scheduler/vllm_side.py > "$lab/vllm.log" 2>&1
find "$work" -name '*.json' -print0 | sort -z | xargs -0 -n 200 target/release/examples/step_log
python3 lab/scheduler/table.py "$work"
