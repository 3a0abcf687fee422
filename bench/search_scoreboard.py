"""Which search finds good settings in the least engine time, on imaginary engines whose best config is known.

    python bench/search_scoreboard.py --seeds 10 --out docs/reference/search-scoreboard.md

Every method starts from the same measured baseline, pays the same for a trial, sees the same noise, and is asked after
each trial for the config it would recommend: the one it measured best, and powerband the one it holds for the best.
Its score is that config's true goodput over the best true goodput of the whole space. Optuna's samplers take part where
optuna is installed.
"""

import argparse
import importlib.util
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from powerband.records.config import EngineConfig, Value
from powerband.records.metrics import Metrics
from powerband.records.objective import is_better
from powerband.records.run import Run, Trial
from powerband.simulate.calibrate import fit_step_time
from powerband.simulate.predict import Predictor
from powerband.tune.search import Search
from search_cases import Case, cases

TRIALS = 12
Ask = Iterator[EngineConfig]


class Session:
    """Measures configs one after another and keeps the score after each: engine seconds and share of the best."""

    def __init__(self, case: Case, best: float, seed: int) -> None:
        self.case, self._best, self._seed = case, best, seed
        self.offered = {config.key for config in space_of(case)}
        self.runs: list[Run] = []
        self.trials: list[Trial] = []
        self.shares: list[float] = []
        self.seconds: list[float] = []
        self._chosen: Trial | None = None
        self.measure(case.baseline)

    def measure(self, config: EngineConfig) -> Trial:
        before = sum(trial.config.key == config.key for trial in self.trials)
        run, cost_s = self.case.trial(config, self._seed, before)
        measured = None if run is None else run.metrics(self.case.slo)
        trial = Trial(
            n=len(self.trials) + 1,
            purpose="tune",
            config=config,
            status="failed" if run is None else "done",
            measured=measured,
            engine_seconds=cost_s,
        )
        self.trials.append(trial)
        if run is not None and measured is not None:
            self.runs.append(run)
            if self._chosen is None or is_better(measured, _metrics(self._chosen), "goodput_per_s"):
                self._chosen = trial
        self.shares.append(self._share(self._chosen.config) if self._chosen else 0.0)
        self.seconds.append(cost_s + (self.seconds[-1] if self.seconds else 0.0))
        return trial

    def recommend(self, config: EngineConfig) -> None:
        """What the method would advise after the last trial, where that is not what was measured best."""
        self.shares[-1] = self._share(config)

    def _share(self, config: EngineConfig) -> float:
        return self.case.exact(config) / self._best


def _metrics(trial: Trial) -> Metrics:
    assert trial.measured is not None
    return trial.measured


def space_of(case: Case) -> list[EngineConfig]:
    return case.space.configs(case.baseline)[0]


def config_of(case: Case, knobs: dict[str, Value]) -> EngineConfig:
    """The baseline with these knobs, and what follows from them."""
    return case.space.complete(case.baseline.replace(**knobs))


def powerband(session: Session, _: random.Random) -> None:
    case = session.case

    def predictor() -> Predictor:
        measured = [trial.measured.goodput_per_s or 0.0 for trial in session.trials if trial.measured]
        return Predictor(
            fit_step_time(session.runs, case.prior),
            case.workload,
            objective="goodput_per_s",
            slo=case.slo,
            deadline_s=case.deadline_s,
            kv_tokens_of=lambda _: case.kv_tokens,
            beat=max(measured),
        )

    search = Search(
        case.space,
        session.trials[0],
        predictor(),
        "goodput_per_s",
        case.slo,
        causes=("no_batching", "queueing"),
        trial_cost_s=lambda _: case.start_s + case.workload.span_s + 5,
        budget_s=1e9,
    )
    while len(session.trials) <= TRIALS and (proposal := search.ask()) is not None:
        search.tell(session.measure(proposal.config), predictor())
        session.recommend(search.best.config)


def random_search(session: Session, draw: random.Random) -> None:
    configs = space_of(session.case)
    for config in draw.sample(configs, min(TRIALS, len(configs))):
        session.measure(config)


def grid(session: Session, draw: random.Random) -> None:
    """The first, middle and last value of each knob, combined, in an order that was shuffled once."""
    values = [[knob.grid[0], knob.grid[len(knob.grid) // 2], knob.grid[-1]] for knob in session.case.knobs]
    names = [knob.name for knob in session.case.knobs]
    product = [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]
    draw.shuffle(product)
    seen: set[str] = set()
    for knobs in product:
        config = config_of(session.case, knobs)
        if config.key in session.offered - seen and len(session.trials) <= TRIALS:
            seen.add(config.key)
            session.measure(config)


def one_at_a_time(session: Session, draw: random.Random) -> None:
    """Coordinate ascent: the values of one knob, keep the best, go on to the next; knobs in a shuffled order."""
    knobs = list(session.case.knobs)
    draw.shuffle(knobs)
    best = session.trials[0]
    for knob in itertools.cycle(knobs):
        before = best
        for value in knob.grid:
            if value == before.config.knobs[knob.name]:
                continue
            if len(session.trials) > TRIALS:
                return
            config = session.case.space.complete(before.config.replace(**{knob.name: value}))
            if config.key not in session.offered:
                continue
            trial = session.measure(config)
            if trial.measured and is_better(trial.measured, _metrics(best), "goodput_per_s"):
                best = trial


def auto_tune(session: Session, _: random.Random) -> None:
    """vLLM's auto_tune.sh (benchmarks/auto_tune): every max_num_seqs with every max_num_batched_tokens, in the order
    of its two lists, all other settings as they are. For llama.cpp its two lists are n_parallel and n_batch."""
    names = ("max_num_seqs", "max_num_batched_tokens") if session.case.engine == "vllm" else ("n_parallel", "n_batch")
    lists = [next(knob.grid for knob in session.case.knobs if knob.name == name) for name in names]
    wanted = {"max_num_seqs": (128, 256), "max_num_batched_tokens": (512, 1024, 2048, 4096)}  # its defaults
    lists = [
        tuple(value for value in grid if value in wanted.get(name, grid))
        for name, grid in zip(names, lists, strict=True)
    ]
    for first, second in itertools.product(*lists):
        config = config_of(session.case, {names[0]: first, names[1]: second})
        if config.key in session.offered and len(session.trials) <= TRIALS:
            session.measure(config)


def optuna_search(sampler: str) -> Callable[[Session, random.Random], None]:
    def method(session: Session, draw: random.Random) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        seed = draw.randrange(1 << 30)
        chosen = optuna.samplers.TPESampler(seed=seed) if sampler == "tpe" else optuna.samplers.GPSampler(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=chosen)
        study.enqueue_trial(dict(session.case.baseline.knobs))
        for _ in range(TRIALS + 1):
            asked = study.ask()
            knobs = {knob.name: asked.suggest_categorical(knob.name, list(knob.grid)) for knob in session.case.knobs}
            config = config_of(session.case, knobs)
            if config.key not in session.offered:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
                continue
            known = next((trial for trial in session.trials if trial.config.key == config.key), None)
            trial = known or session.measure(config)
            study.tell(asked, trial.measured.goodput_per_s if trial.measured else 0.0)

    return method


METHODS: dict[str, Callable[[Session, random.Random], None]] = {
    "powerband": powerband,
    "random": random_search,
    "grid": grid,
    "one at a time": one_at_a_time,
    "auto_tune.sh": auto_tune,
}
if importlib.util.find_spec("optuna"):
    METHODS["Optuna TPE"] = optuna_search("tpe")
    if importlib.util.find_spec("torch"):
        METHODS["Optuna GP"] = optuna_search("gp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--case", action="append", help="only cases whose name contains this")
    parser.add_argument("--method", action="append", help="only these methods")
    parser.add_argument("--rows", type=Path, help="append every session as a JSON line; those there are not run again")
    parser.add_argument("--out", type=Path, help="write the table here, as Markdown")
    args = parser.parse_args()
    rows = read_rows(args.rows)
    for case in cases():
        if not args.case or any(part in case.name for part in args.case):
            play(
                case, [name for name in METHODS if not args.method or name in args.method], args.seeds, rows, args.rows
            )
    table = render(rows)
    print(table)
    if args.out:
        args.out.write_text(table, encoding="utf-8")


def play(case: Case, methods: list[str], seeds: int, rows: list[dict], path: Path | None) -> None:  # type: ignore[type-arg]
    """Every method and seed that has no row yet."""
    space = space_of(case)
    values = sorted((case.exact(config) for config in space), reverse=True)
    best, near = values[0], sum(value >= 0.98 * values[0] for value in values) / len(values)
    about = {"configs": len(space), "best": best, "near": near, "median": statistics.median(values) / best}
    print(case.name, about, file=sys.stderr)
    known = {(row["case"], row["method"], row["seed"]) for row in rows}
    for name in methods:
        for seed in range(seeds):
            if (case.name, name, seed) in known:
                continue
            began = time.monotonic()
            session = Session(case, best, seed)
            METHODS[name](session, random.Random(seed * 1000 + 17))
            row = {"case": case.name, "method": name, "seed": seed, "shares": session.shares}
            row |= {"seconds": session.seconds, "cpu_s": time.monotonic() - began, **about}
            rows.append(row)
            if path:
                with path.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def read_rows(path: Path | None) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def at_trial(row: dict, trials: int) -> float:  # type: ignore[type-arg]
    """Share of the best after this many trials beyond the baseline; a search that has stopped keeps its last."""
    return float(row["shares"][min(trials, len(row["shares"]) - 1)])


def interval(values: list[float]) -> str:
    """Mean with a 90 % bootstrap interval."""
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(2000))
    return f"{statistics.fmean(values):.1%} [{means[100]:.1%}, {means[1899]:.1%}]"


HEAD = """# Search scoreboard

Written by `bench/search_scoreboard.py`: eight imaginary engines (`bench/search_cases.py`), each with a step time the
predictor does not know, settings it knows nothing of, noise of 3 % on the step time of every trial, and some with
configs that die; {sessions}. All methods start from the same measured
baseline and see the same noise. The score is the true goodput of the config a method would recommend (the one it
measured best; powerband the one it holds for the best) over the best of the whole space; brackets are 90 % bootstrap
intervals over sessions.

These engines are run by the simulator that the search predicts with, so their scheduler is known exactly; what a real
engine adds on top is not in this table.

"""


def render(rows: list[dict]) -> str:  # type: ignore[type-arg]
    seeds = len({row["seed"] for row in rows})
    head = HEAD.format(sessions=f"{seeds} seeds a case and method, {len(rows)} sessions in all")
    return head + tables(rows)


def tables(rows: list[dict]) -> str:  # type: ignore[type-arg]
    """Over all cases, and by case after 6 trials."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [
        "| method | after 3 trials | after 6 | after 12 | sessions at 98 % after 6 | trials used |",
        "| --- " * 6 + "|",
    ]
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        cells = [interval([at_trial(row, n) for row in own]) for n in (3, 6, 12)]
        reached = statistics.fmean(at_trial(row, 6) >= 0.98 for row in own)
        used = statistics.fmean(len(row["shares"]) - 1 for row in own)
        lines.append(f"| {method} | {' | '.join(cells)} | {reached:.0%} | {used:.1f} |")
    lines += ["", "| case | configs | within 2 % of the best | " + " | ".join(methods) + " |"]
    lines.append("| --- " * (len(methods) + 3) + "|")
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = []
        about = next(row for row in rows if row["case"] == case)
        for method in methods:
            own = [at_trial(row, 6) for row in rows if row["method"] == method and row["case"] == case]
            cells.append(interval(own) if own else "")
        lines.append(f"| {case} | {about['configs']} | {about['near']:.1%} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
