"""A ladder over real servers with known step times: what it measures, locates, predicts, and how it goes on."""

import json
from pathlib import Path

import pytest

from powerband import evaluate
from powerband.case import CaseRequest
from powerband.ladder import climb
from powerband.ladder.case import LadderCase, prepare_ladder
from powerband.ladder.climb import Ladder
from powerband.ladder.measure import Clock, OutOfTime
from powerband.probes.checkpoint import read_model
from powerband.probes.device import read_device
from powerband.records.config import EngineConfig
from powerband.records.errors import RequestError
from powerband.records.ladder import LadderReport, RungPlan
from powerband.records.slo import Slo
from powerband.records.workload import RequestSpec, Workload
from powerband.report.ladder import ladder_document
from powerband.report.ladder_text import render_ladder
from powerband.report.markdown import draw_markdown
from powerband.report.page import render_document
from powerband.stores.sqlite import Journal

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}
# A step takes 8 ms whatever is in it: eight sequences at once give eight times the tokens of one.
STEP = {"step_ms": 8.0, "step_ms_per_seq": 0.0, "prefill_tokens_per_s": 1e6}


def fake(**knobs: bool | int | float | str) -> EngineConfig:
    return EngineConfig(engine="fake", model="fake", knobs={**STEP, **knobs})


PLANS = (
    RungPlan(name="naive", change="one slot", config=fake(slots=1)),
    RungPlan(name="broken", change="does not start", config=fake(slots=4, fail_start=True)),
    RungPlan(name="batched", change="eight slots", config=fake(slots=8), removes=("no_batching", "queueing")),
    RungPlan(name="not here", change="nothing", config=fake(slots=8), left_out="a reason"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(MODEL))
    return place


def make_case(folder: Path, window_s: float = 1.6) -> LadderCase:
    requests = tuple(RequestSpec(offset_ns=0, input_tokens=8, output_tokens=10) for _ in range(400))
    return LadderCase(
        request=CaseRequest(model=str(folder), engine="vllm", window_s=window_s, ladder_from="transformers"),
        model=read_model(str(folder)),
        device=read_device("cpu"),
        workload=Workload(requests=requests, source="test", concurrency=8),
        concurrency=8,
        slo=Slo(ttft_s=0.5, tpot_s=0.05),
        set_knobs={},
        notes=(),
    )


def walk(case: LadderCase, journal: Journal, session: str, seconds: float = 300.0) -> LadderReport:
    return Ladder(case, journal, session, command="powerband loop", seconds=seconds, watcher=None).climb()


def test_a_ladder_measures_names_the_limit_and_resumes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(climb, "plan_rungs", lambda ask: PLANS)
    monkeypatch.setattr(
        evaluate, "judge", lambda run: ("done", None)
    )  # the fake needs no core: neighbours do not matter
    case, journal = make_case(folder), Journal(tmp_path / "home")
    session = journal.begin("loop", "{}").session_id

    none = walk(case, journal, session, seconds=5.0)
    assert (none.rungs, none.chosen) == ((), None)
    assert "--resume goes on" in none.stopped_because

    report = walk(case, journal, session)
    naive, broken, batched, _ = report.rungs
    assert [rung.status for rung in report.rungs] == ["done", "failed", "done", "left_out"]
    # One slot: 10 tokens in 10 steps of 8 ms, so 125 tokens/s at most, alone as with eight waiting.
    assert naive.alone is not None
    assert 80 <= (naive.alone.tokens_per_s or 0) <= 126  # less on a busy machine, more never
    assert naive.at_offered is not None
    assert naive.at_offered.holds is False
    # Halved to four in flight, the last of them waits 3 x 80 ms for its first token, within the 500 ms promised; then
    # the middle of the two, or half again on a busy machine.
    assert [level.concurrency for level in naive.levels][:3] == [1, 8, 4]
    assert naive.at_best is not None
    assert naive.at_best.concurrency in (1, 2, 4, 6)
    assert naive.verdict == "no_batching"
    assert "planted failure" in (broken.cause or "")
    assert batched.at_offered is not None
    assert 500 <= (batched.at_offered.tokens_per_s or 0) <= 1001
    assert batched.at_offered.holds is True
    assert batched.verdict != "no_batching"
    assert report.fastest == report.chosen == batched.n
    assert report.stopped_because == "the top was reached"
    for rung in (naive, batched):
        for level in rung.levels:
            assert level.predicted is not None, "every load is predicted before it is sent"

    trials = len(journal.trials(session))
    again = walk(case, journal, session)
    assert len(journal.trials(session)) == trials, "a finished ladder runs nothing"
    assert [rung.status for rung in again.rungs] == [rung.status for rung in report.rungs]
    assert again.rungs[2].levels[1] == batched.levels[1]

    text = render_ladder(report, width=110)
    document = ladder_document(report)
    page, markdown = render_document(document), draw_markdown(document)
    for words in ("batched", "no batching", "a reason", "planted failure"):
        assert words in page
        assert words in markdown
    assert "removed it" in page
    assert "batched" in text


def test_a_ladder_that_was_cut_goes_on_with_the_loads_of_its_last_rung(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(climb, "plan_rungs", lambda ask: PLANS[2:3])
    monkeypatch.setattr(evaluate, "judge", lambda run: ("done", None))
    case, journal = make_case(folder), Journal(tmp_path / "home")
    session = journal.begin("loop", "{}").session_id
    asked: list[float] = []

    class Short(Clock):
        def need(self, seconds: float) -> None:
            asked.append(seconds)
            if len(asked) > 3:  # the rung and its two loads are paid for, no more
                raise OutOfTime

    with monkeypatch.context() as shortly:
        shortly.setattr(climb, "Clock", Short)
        cut = walk(case, journal, session)
    assert [level.concurrency for level in cut.rungs[0].levels] == [1, 8]
    assert cut.chosen == 1
    assert "--resume goes on" in cut.stopped_because

    report = walk(case, journal, session)
    assert [level.concurrency for level in report.rungs[0].levels][:3] in ([1, 8, 16], [1, 8, 4])
    assert report.stopped_because == "the top was reached"


def test_a_wrong_ladder_is_refused_before_anything_starts(folder: Path) -> None:
    def ask(**changes: object) -> CaseRequest:
        fields: dict[str, object] = {"model": str(folder), "engine": "vllm", "ladder_from": "transformers"}
        return CaseRequest(**{**fields, **changes})  # type: ignore[arg-type]

    with pytest.raises(RequestError, match="llamacp"):
        prepare_ladder(ask(ladder_from="llamacp"))
    with pytest.raises(RequestError, match="'fake'"):
        prepare_ladder(ask(engine="fake"))
    with pytest.raises(RequestError, match="nosuchknob"):
        prepare_ladder(ask(settings=("nosuchknob=1",)))
    with pytest.raises(RequestError, match="context"):
        prepare_ladder(ask(traffic="in=600,out=8,concurrency=2"))
    case = prepare_ladder(ask(traffic="in=64,out=8,arrivals=poisson(4/s)", device="h200"))
    assert case.concurrency == 64
    assert "arrivals are not used" in case.notes[0]
