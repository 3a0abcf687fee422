#!/usr/bin/env bash
# Traces of decode and planted causes on one NVIDIA card; needs torch, transformers and vLLM 0.26. About 5 minutes.
#   . /path/to/vllm-env; bench/gpu/profile.sh results [seeds]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?give a folder for the results}
seeds=${2:-5}
mkdir -p "$out"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
device=${POWERBAND_DEVICE:-h200}
{
  python3 -m powerband --version
  python3 bench/gpu/trace_transformers.py --out "$out" || echo "no Transformers trace"
  python3 bench/gpu/planted_vllm.py --device "$device" --out "$out" --seeds "$seeds" || echo "planted causes: failed"
} 2>&1 | tee "$out/profile.log"
rm -rf "$out/work"
ls -l "$out"
