"""nvidia-smi's matrices, typed in as it prints them."""

import pytest

from powerband.probes import topology
from powerband.probes.topology import CardPath, Interconnect, parse_peers, parse_topology, read_interconnect
from powerband.records.value import Missing

TWO = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-47,96-143\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPIX\t48-95,144-191\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS
NIC1\tSYS\tPIX\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""
FOUR = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      PHB     SYS     SYS     0-15    0
GPU1    PHB      X      SYS     SYS     0-15    0
GPU2    SYS     SYS      X      PHB     16-31   1
GPU3    SYS     SYS     PHB      X      16-31   1
"""
PEERS = """\
 \tGPU0\tGPU1\tGPU2\tGPU3
 GPU0\tX\tOK\tCNS\tCNS
 GPU1\tOK\tX\tCNS\tOK
 GPU2\tCNS\tCNS\tX\tOK
 GPU3\tCNS\tCNS\tOK\tX

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
"""


def test_two_cards_on_nvlink() -> None:
    (path,) = parse_topology(TWO)
    assert (path.a, path.b, path.link, path.fast, path.meaning) == (0, 1, "NV18", True, "NVLink")


def test_four_cards_on_two_sockets() -> None:
    words = {(one.a, one.b): one.link for one in parse_topology(FOUR)}
    assert words == {(0, 1): "PHB", (0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS", (2, 3): "PHB"}
    assert not any(one.fast for one in parse_topology(FOUR))
    assert CardPath(a=0, b=2, link="SYS").meaning == "between NUMA nodes"


def test_peer_access_counts_in_both_directions() -> None:
    # 1 may read 3, but 3 may not read 1.
    assert parse_peers(PEERS) == {
        (0, 1): True, (0, 2): False, (0, 3): False, (1, 2): False, (1, 3): False, (2, 3): True,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "nonsense\nGPU\n", "GPU0\n", "\tGPU0\nGPU0\t X \n"])
def test_hostile_or_single(text: str) -> None:
    assert parse_topology(text) == ()


def test_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: dict[tuple[str, ...], str | Missing] = {("-m",): FOUR, ("-p2p", "r"): PEERS}
    monkeypatch.setattr(topology, "_run", lambda *words: pages[words])
    monkeypatch.setenv("NCCL_P2P_LEVEL", "NVL")
    found = read_interconnect()
    assert isinstance(found, Interconnect)
    assert {(one.a, one.b): one.peer for one in found.paths}[0, 3] is False
    assert found.environment["NCCL_P2P_LEVEL"] == "NVL"
    pages["-p2p", "r"] = Missing(missing="too old")
    older = read_interconnect()
    assert isinstance(older, Interconnect)
    assert {one.peer for one in older.paths} == {None}
    pages["-m",] = "\tGPU0\nGPU0\t X \n"
    assert isinstance(read_interconnect(), Missing)


def test_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    found = read_interconnect()
    assert isinstance(found, Missing)
    assert "nvidia-smi" in found.missing
