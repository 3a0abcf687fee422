#!/usr/bin/env bash
# TP 2 against DP 2 against one card on a node of two cards: bench/gpu/parallel.py with its environment, under 10 minutes.
# usage: bench/gpu/parallel.sh OUT [VLLM_ENV_FILE [OPTION ...]]     (run from the repository root; vLLM on PATH, or the file sets it)
set -euo pipefail
out=${1:?usage: bench/gpu/parallel.sh OUT [VLLM_ENV_FILE]}
if [ -n "${2:-}" ]; then . "$2"; fi
export PYTHONPATH="$PWD/src:$PWD/bench/gpu${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec python3 bench/gpu/parallel.py --device h200 --out "$out" --budget 540 "${@:3}"
