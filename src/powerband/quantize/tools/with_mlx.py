"""mlx-lm's converter: 4 or 8 bits in groups, embeddings included."""

import shutil
from typing import Any

PACKAGES = ["mlx-lm", "mlx"]


def run(steps: Any) -> None:
    steps.stage("quantise")
    from mlx_lm import convert

    shutil.rmtree(steps.out)  # the tool wants to make the folder itself
    convert(
        steps.model, mlx_path=str(steps.out), quantize=True, q_bits=8 if steps.job["method"] == "mlx8" else 4,
        q_group_size=steps.group if steps.group in (32, 64, 128) else 64,
    )  # fmt: skip
