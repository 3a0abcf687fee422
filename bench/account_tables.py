"""Writes the reference pages of the memory account from what is measured and shipped.

    python bench/account_tables.py devices > docs/reference/devices.md
    python bench/account_tables.py accuracy FIELD_DIR [--llamacpp ROWS.json] [--h200 DIR HELD_OUT_DIR] > accuracy.md

ROWS.json comes from bench/account_llamacpp.py, DIR from bench/gpu/account_vllm.py.
"""

import argparse
import sys
from pathlib import Path

import msgspec

from account_field import draw, load_rows, predict
from account_h200 import draw_h200
from powerband.probes.device import device_catalogue
from powerband.records.units import GIB, MIB

DEVICES_HEAD = """\
# Devices

The catalogue behind `--device`, written by `bench/account_tables.py devices` from
`src/powerband/probes/data/devices.toml`. Memory is what the driver offers a program, not what the box says; FLOP/s
are dense; the link is per direction, to all peers in the node together. `--device auto` asks the NVIDIA driver and
takes its memory instead; `--device cpu` is the host; `--device FILE.toml` takes a device from a file:

```toml
name = "my-card"
vendor = "NVIDIA"
kind = "gpu"                      # gpu, npu or cpu
memory_bytes = 25382879232
bandwidth_bytes_per_s = 1.008e12
source = "measured here"
compute_capability = "8.9"        # optional, as are link_bytes_per_s, pcie_bytes_per_s, unified_memory
[flops_per_s]
bf16 = 1.652e14
```

"""
ACCURACY_HEAD = """\
# How far off the memory account is

Predicted by the shipped code, before or without seeing the start; misses included. Written by
`bench/account_tables.py accuracy`.

## Starts that others published

Each row states its model and the settings that its figures depend on. Constants of vLLM's releases (bytes a logit in
the sampler, memory beside PyTorch) were found from M002, M003, M006 and from V0 logs: **for those rows activation and
non-torch are a fit, not a test**; weights and blocks are not fitted to anything. "Tokens in the reported cache" tests
the block arithmetic alone.

"""


def draw_devices() -> str:
    rows = [
        DEVICES_HEAD,
        "| name | memory GiB | TB/s | dense TFLOP/s | link GB/s | source |",
        "| --- | --: | --: | --- | --: | --- |",
    ]
    for spec in device_catalogue().values():
        rates = ", ".join(f"{dtype} {rate / 1e12:g}" for dtype, rate in spec.flops_per_s.items())
        link = f"{spec.link_bytes_per_s / 1e9:g}" if spec.link_bytes_per_s else ""
        memory, bandwidth = f"{spec.memory_bytes / GIB:.2f}", f"{spec.bandwidth_bytes_per_s / 1e12:.4g}"
        rows.append(f"| {spec.name} | {memory} | {bandwidth} | {rates} | {link} | {spec.source} |")
    return "\n".join(rows) + "\n"


def draw_llamacpp(path: Path) -> str:
    rows = msgspec.json.decode(path.read_bytes())
    out = [
        "## llama.cpp on a CPU",
        "",
        "SmolLM2-135M Q4_1, xllamacpp 2026.10: predicted / the buffer sizes in the server's own log. The layout of the",
        "compute buffer was worked out with thirteen made-up shapes and the plain rows in view; held-out rows were",
        "written down before they were first run.",
        "",
        "| settings | cache MiB | compute and output MiB | weights, cache and buffers | error of the total |",
        "| --- | --- | --- | --: | --: |",
    ]
    for row in rows:
        knobs = " ".join(f"{name}={value}" for name, value in row["knobs"].items())
        cache, other, total = (_pair(row[line]) for line in ("kv_cache_bytes", "activation_bytes", "total_bytes"))
        error = row["total_bytes"]["predicted"] / row["total_bytes"]["reported"] - 1
        knobs += " (held out)" if row.get("held_out") else ""
        out.append(f"| {knobs} | {cache} | {other} | {total} | {error:+.2%} |")
    return "\n".join(out) + "\n"


def _pair(figure: dict[str, float]) -> str:
    return f"{figure['predicted'] / MIB:.2f} / {figure['reported'] / MIB:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pages = parser.add_subparsers(dest="page", required=True)
    pages.add_parser("devices")
    accuracy = pages.add_parser("accuracy")
    accuracy.add_argument("field_dir", type=Path)
    accuracy.add_argument("--llamacpp", type=Path)
    accuracy.add_argument("--h200", type=Path, nargs=2, help="starts before and after calibration")
    arguments = parser.parse_args()
    if arguments.page == "devices":
        sys.stdout.write(draw_devices())
        return 0
    given = load_rows(arguments.field_dir)
    sections = [ACCURACY_HEAD + draw(list(predict(arguments.field_dir, given)), given)]
    sections += [draw_llamacpp(arguments.llamacpp)] if arguments.llamacpp else []
    sections += [draw_h200(*arguments.h200)] if arguments.h200 else []
    sys.stdout.write("\n".join(sections))
    return 0


if __name__ == "__main__":
    sys.exit(main())
