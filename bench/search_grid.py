"""A grid of configs of a real engine, measured once and replayed for every method of search.

Used by search_llamacpp.py and gpu/search_vllm.py. A trial is one of the config's measured repeats, drawn by the
session's seed, so the noise is the machine's own. A method's score is the mean goodput, over the repeats, of the config
it would recommend, over the best such mean.
"""

import hashlib
import statistics
from collections.abc import Mapping
from pathlib import Path

import msgspec

from powerband.engines.base import Engine
from powerband.load.traffic import build_workload
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig, Knob, Value
from powerband.records.errors import RequestError
from powerband.records.run import Run
from powerband.records.slo import Slo
from powerband.records.value import Record
from powerband.simulate.step_time import StepTime, predict_from_datasheet
from powerband.tune.space import Space
from search_scoreboard import METHODS, play, read_rows, tables


class Measured(Record):
    """One run of one config of the grid, or why there is none; ``seconds`` with start and stop."""

    config: EngineConfig
    repeat: int
    seconds: float
    run: Run | None
    died: str | None = None


class Grid:
    """The measured grid as a case to search on (the same attributes as ``search_cases.Case``).

    ``coarse`` names the knobs that are turned and which of the adapter's values they take (None: all of ``knobs``'
    own); ``fixed`` holds for every config, and every other knob stays at its naive value.
    """

    kv_tokens: int | None = None

    def __init__(
        self,
        name: str,
        adapter: Engine,
        model: str,
        *,
        device: str,
        knobs: tuple[Knob, ...],
        coarse: Mapping[str, tuple[Value, ...] | None],
        fixed: Mapping[str, Value],
        traffic: str,
        requests: int,
        slo: Slo,
        late_s: float,
        start_s: float,
    ) -> None:
        self.name, self.engine, self.model, self.slo, self.start_s = name, adapter.name, model, slo, start_s
        self.traffic, self.adapter = traffic, adapter
        self.workload = build_workload(traffic, requests=requests, seed=5)
        self.deadline_s = self.workload.span_s + late_s
        self._all_knobs = knobs
        self.knobs = tuple(
            msgspec.structs.replace(knob, grid=coarse[knob.name] or knob.grid)
            for knob in self._all_knobs
            if knob.name in coarse
        )
        naive = {knob.name: knob.naive for knob in self.knobs}
        self.baseline = self._complete(adapter.naive(model, self.workload).replace(**naive, **fixed))
        # With the knobs that alter the answers' last digits: only speed is compared here, no quality gate is run.
        self.space = Space(knobs=self.knobs, complete=self._complete, refuses=self._refuses, numerics=True)
        self.found: dict[str, list[Measured]] = {}
        self.planned = len(self.configs())
        self.prior: StepTime = predict_from_datasheet(read_model(model), read_device(device), self.baseline)

    @property
    def whole_space(self) -> int:
        """Configs of the adapter's whole space, of which the grid is a part."""
        whole = Space(
            knobs=self._all_knobs,
            refuses=lambda config: self.adapter.refuses(config, self.workload),
            numerics=True,
            most=1 << 20,
        )
        return len(whole.configs(self.baseline)[0])

    def configs(self) -> list[EngineConfig]:
        found = self.space.configs(self.baseline)[0]
        return found if any(config.key == self.baseline.key for config in found) else [self.baseline, *found]

    def load(self, folder: Path) -> None:
        """Read what was measured; from here on the space is that alone."""
        for path in sorted(folder.glob("*.json")):
            one = msgspec.json.decode(path.read_bytes(), type=Measured)
            here = msgspec.structs.replace(one.config, model=self.model)  # it may lie elsewhere where it was measured
            self.found.setdefault(here.key, []).append(msgspec.structs.replace(one, config=here))
        if self.baseline.key not in self.found:
            raise RequestError(
                f"{folder} has no run of the baseline {self.baseline.knobs}",
                hint="every method starts there: measure it",
            )

    def trial(self, config: EngineConfig, seed: int, before: int = 0) -> tuple[Run | None, float]:
        """One of the config's measured repeats, the next one where it was tried ``before``; the same for one seed."""
        repeats = self.found[config.key]
        digest = hashlib.sha256(f"{seed}{config.key}".encode()).digest()
        one = repeats[(digest[0] + before) % len(repeats)]
        return one.run, one.seconds

    def exact(self, config: EngineConfig) -> float:
        """Mean goodput over the repeats."""
        return statistics.fmean(self.goodputs(config))

    def goodputs(self, config: EngineConfig) -> list[float]:
        return [(one.run.metrics(self.slo).goodput_per_s or 0.0) if one.run else 0.0 for one in self.found[config.key]]

    def _complete(self, config: EngineConfig) -> EngineConfig:
        return self.adapter.complete(config, self.workload, frozenset())

    def _refuses(self, config: EngineConfig) -> str | None:
        if self.found and config.key not in self.found:
            return "not measured"
        return self.adapter.refuses(config, self.workload)


def replay(
    grid: Grid,
    title: str,
    script: str,
    seeds: int,
    rows_path: Path | None,
    findings: str,
    starts: Mapping[str, Mapping[str, Value]] | None = None,
) -> str:
    """The page: how each method searched the grid, ``findings``, and what was measured.

    ``starts``: names and settings of the baselines to search from, the naive one where none is named.
    """
    rows = read_rows(rows_path)
    name, naive = grid.name, grid.baseline
    for start, knobs in (starts or {"": {}}).items():
        grid.name, grid.baseline = name + start, naive.replace(**knobs)
        play(grid, list(METHODS), seeds, rows, rows_path)
    grid.name, grid.baseline = name, naive
    return head(grid, title, script, seeds) + tables(rows) + findings + "\n" + measured_table(grid)


def head(grid: Grid, title: str, script: str, seeds: int) -> str:
    repeats = [grid.goodputs(config) for config in grid.configs()]
    level = statistics.fmean(value for values in repeats for value in values)
    spread = statistics.fmean(statistics.pstdev(values) for values in repeats if len(values) > 1)
    trials = sum(map(len, repeats))
    minutes = sum(one.seconds for ones in grid.found.values() for one in ones) / 60
    measured = "all" if len(repeats) == grid.planned else f"{len(repeats)} of them"
    words = (__doc__ or "").split("\n\n")[1].partition(". ")[2].replace("\n", " ").strip()
    return (
        f"# {title}\n\n"
        f"Written by `{script}`: the configs of a coarse grid are measured, then each method searches it. {words} "
        "Knobs that alter the last digits of answers take part: only speed is compared.\n\n"
        f"The adapter's whole space has {grid.whole_space:,} configs; the grid {grid.planned}, {measured} measured "
        f"in {trials} runs and {minutes:.0f} engine minutes. Two runs of one config differ by {spread / level:.1%} "
        f"(standard deviation of goodput over its mean). Traffic `{grid.traffic}`, "
        f"{len(grid.workload.requests)} requests; promise TTFT {grid.slo.ttft_s} s, TPOT {grid.slo.tpot_s} s. "
        f"{seeds} seeds a method.\n\n"
    )


def measured_table(grid: Grid) -> str:
    names = [knob.name for knob in grid.knobs]
    lines = ["## The grid, best first", "", "| " + " | ".join(names) + " | goodput/s, each repeat |"]
    lines.append("| --- " * (len(names) + 1) + "|")
    for config in sorted(grid.configs(), key=grid.exact, reverse=True):
        cells = [str(config.knobs[name]) for name in names]
        lines.append("| " + " | ".join(cells) + " | " + ", ".join(f"{v:.2f}" for v in grid.goodputs(config)) + " |")
    return "\n".join(lines) + "\n"
