"""The Transformers adapter against the contract, on a tiny model of random weights; skipped where torch is absent."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from powerband.engines.base import Engine
from powerband.probes.http import read_page
from powerband.records.config import EngineConfig, Value
from powerband.records.errors import RequestError
from powerband.records.workload import RequestSpec, Workload
from powerband.testing import EngineContract
from tests.support.tiny_model import require, write_tiny_model

SHORT: dict[str, Value] = {"num_threads": 1, "load_format": "dummy"}


class TestTransformers(EngineContract):
    engine_name = "transformers"
    config_knobs: ClassVar[dict[str, Value]] = {**SHORT, "max_length": 256}
    bad_start: ClassVar[dict[str, Value]] = {"attn_implementation": "flash_attention_2"}  # not on a CPU

    @pytest.fixture
    def model(self, tmp_path: Path) -> str:
        require("torch", "transformers")
        return str(write_tiny_model(tmp_path / "tiny"))


class TestStatic(TestTransformers):
    config_knobs: ClassVar[dict[str, Value]] = {**SHORT, "batching": "static", "batch_size": 4}


class TestContinuous(TestTransformers):
    config_knobs: ClassVar[dict[str, Value]] = {**SHORT, "batching": "continuous", "num_blocks": 64}


def test_rules_need_no_torch(tmp_path: Path) -> None:
    from powerband.engines.base import get_engine

    engine: Engine = get_engine("transformers")
    workload = Workload(requests=(RequestSpec(offset_ns=0, input_tokens=40, output_tokens=8),), source="test")
    config = EngineConfig(engine="transformers", model=str(tmp_path), knobs={})
    assert "static" in (engine.refuses(config.replace(batch_size=4), workload) or "")
    assert engine.refuses(engine.complete(config.replace(batching="static"), workload, frozenset()), workload) is None
    assert "max_length=16" in (engine.refuses(config.replace(max_length=16), workload) or "")
    lookup = config.replace(prompt_lookup_num_tokens=3, batching="continuous")
    assert "one request at a time" in (engine.refuses(lookup, workload) or "")
    with pytest.raises(RequestError, match=r"config\.json"):
        engine.start(config, tmp_path)


PROMPT = [5, 6, 7, 8, 9, 10]
WAYS: dict[str, dict[str, Value]] = {
    "alone": {},
    "guessed": {"prompt_lookup_num_tokens": 3},
    "static": {"batching": "static", "batch_size": 3},
    "continuous": {"batching": "continuous", "num_blocks": 64},
}


@pytest.mark.parametrize("way", list(WAYS))
def test_every_way_of_serving_gives_the_same_answer(way: str, tmp_path: Path) -> None:
    """Greedy answers of saved weights are those that Transformers itself gives, however requests are batched."""
    require("torch", "transformers")
    from powerband.engines.base import get_engine
    from tests.support.tiny_model import save_random_weights

    folder = save_random_weights(write_tiny_model(tmp_path / "tiny"))
    knobs: dict[str, Value] = {"num_threads": 1, **WAYS[way]}
    engine = get_engine("transformers")
    running = engine.start(EngineConfig(engine="transformers", model=str(folder), knobs=knobs), tmp_path / way)
    try:
        answers = [streamed_ids(running.url) for _ in range(2)]
    finally:
        running.stop()
    assert answers == [expected_ids(folder)] * 2


@pytest.mark.parametrize("way", ["static", "continuous"])
def test_requests_served_together_do_not_change_each_other(way: str, tmp_path: Path) -> None:
    """Prompts and answers of different lengths: the shorter one is padded, or shares its steps with the longer one."""
    require("torch", "transformers")
    from powerband.engines.base import get_engine
    from tests.support.tiny_model import save_random_weights

    folder = save_random_weights(write_tiny_model(tmp_path / "tiny"))
    knobs: dict[str, Value] = {"num_threads": 1, **WAYS[way]}
    if way == "static":
        knobs["batch_wait_ms"] = 2000.0
    asked = [(PROMPT, 12), ([20, 21, 22], 4), ([30] * 17, 9)]
    running = get_engine("transformers").start(
        EngineConfig(engine="transformers", model=str(folder), knobs=knobs), tmp_path / way
    )
    try:
        with ThreadPoolExecutor(3) as pool:
            given = list(pool.map(lambda one: streamed_ids(running.url, *one), asked))
    finally:
        running.stop()
    assert given == [expected_ids(folder, *one) for one in asked]


def streamed_ids(url: str, prompt: list[int] = PROMPT, tokens: int = 12) -> list[int]:
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    text = read_page(url + "/v1/completions", timeout_s=60, body=body).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return [token for event in events for token in event["choices"][0]["token_ids"]]


def expected_ids(folder: Path, prompt: list[int] = PROMPT, tokens: int = 12) -> list[int]:
    """The same by Transformers itself, in this process."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    made = model.generate(
        torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    return [int(token) for token in made[0, len(prompt) :]]
