"""How the cards of this node reach each other: ``nvidia-smi topo``, peer access, NCCL and what its environment says."""

import importlib.metadata
import os
import re
import shutil
import subprocess

from powerband.records.value import Missing, Record

_TIMEOUT_S = 20.0
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU\d+")
# What nvidia-smi's words mean for tensor parallelism, best first; NV# is a number of NVLinks.
MEANINGS = {
    "NV": "NVLink",
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "between host bridges of one NUMA node",
    "SYS": "between NUMA nodes",
}


class CardPath(Record):
    """From card ``a`` to card ``b``: nvidia-smi's word, and whether ``a`` may read ``b``'s memory (None: not told)."""

    a: int
    b: int
    link: str
    peer: bool | None = None

    @property
    def fast(self) -> bool:
        return self.link.startswith("NV")

    @property
    def meaning(self) -> str:
        return MEANINGS.get("NV" if self.fast else self.link, "unknown")


class Interconnect(Record, tag_field="is", tag="interconnect"):
    """Each pair of cards once; ``environment`` holds the variables that steer NCCL."""

    paths: tuple[CardPath, ...]
    nccl: str | Missing
    environment: dict[str, str]


def read_interconnect() -> Interconnect | Missing:
    """Missing where no nvidia-smi is here, it fails, or there are fewer than two cards."""
    matrix = _run("-m")
    if isinstance(matrix, Missing):
        return matrix
    paths = parse_topology(matrix)
    if not paths:
        return Missing(missing="fewer than two cards: nothing to connect")
    peers = _run("-p2p", "r")
    allowed = {} if isinstance(peers, Missing) else parse_peers(peers)
    return Interconnect(
        paths=tuple(CardPath(a=one.a, b=one.b, link=one.link, peer=allowed.get((one.a, one.b))) for one in paths),
        nccl=read_nccl(),
        environment={name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")},
    )


def parse_topology(text: str) -> tuple[CardPath, ...]:
    """Pairs of cards from ``nvidia-smi topo -m``; other columns (NICs, affinities) are passed over."""
    return tuple(CardPath(a=a, b=b, link=word) for (a, b), word in sorted(_cells(text).items()) if a < b)


def parse_peers(text: str) -> dict[tuple[int, int], bool]:
    """From ``nvidia-smi topo -p2p r``: whether each pair, in both directions, may read."""
    cells = _cells(text)
    return {(a, b): word == "OK" and cells.get((b, a)) == "OK" for (a, b), word in cells.items() if a < b}


def read_nccl() -> str | Missing:
    """The version of the NCCL that PyTorch's wheels bring."""
    for name in _NCCL_PACKAGES:
        try:
            return f"{importlib.metadata.version(name)} ({name})"
        except importlib.metadata.PackageNotFoundError:
            continue
    return Missing(missing="no nvidia-nccl package here (an engine in another environment may have its own)")


def _cells(text: str) -> dict[tuple[int, int], str]:
    lines = [_ESCAPES.sub("", line).split() for line in text.splitlines()]
    head = next((words for words in lines if words and all(map(_GPU.fullmatch, words[:1]))), [])
    columns = [word for word in head if _GPU.fullmatch(word)]
    cells = {}
    for words in lines:
        if words is head or not words or not _GPU.fullmatch(words[0]):
            continue
        for column, word in zip(columns, words[1:], strict=False):
            cells[int(words[0][3:]), int(column[3:])] = word
    return cells


def _run(*words: str) -> str | Missing:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Missing(missing="no nvidia-smi on the PATH")
    try:
        shown = subprocess.run([program, "topo", *words], capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Missing(missing=f"nvidia-smi topo failed: {error}")
    if shown.returncode != 0:
        last = (shown.stderr or shown.stdout).strip().splitlines()[-1:] or [f"exit code {shown.returncode}"]
        return Missing(missing=f"nvidia-smi topo failed: {last[0]}")
    return shown.stdout
