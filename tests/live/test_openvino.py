"""The OpenVINO adapter against the contract, on the demo's model; skipped where either is absent."""

import os
from pathlib import Path
from typing import ClassVar

import pytest

from powerband.engines.base import get_engine
from powerband.engines.hosted import PYTHON
from powerband.probes.installed import find_demo_model
from powerband.records.config import EngineConfig, Value
from powerband.records.errors import RequestError
from powerband.records.workload import RequestSpec, Workload
from powerband.testing import EngineContract
from tests.support.tiny_model import require

WORKLOAD = Workload(requests=(RequestSpec(offset_ns=0, input_tokens=40, output_tokens=8),), source="test")


@pytest.mark.live
class TestOpenVino(EngineContract):
    engine_name = "openvino"
    config_knobs: ClassVar[dict[str, Value]] = {"INFERENCE_NUM_THREADS": 1, "max_num_seqs": 4}
    bad_start: ClassVar[dict[str, Value]] = {"device": "GPU"}  # there is none here

    @pytest.fixture
    def model(self) -> str:
        if PYTHON not in os.environ:
            require("openvino_genai")
        found = find_demo_model()
        if found is None:
            pytest.skip("the demo's model is not installed here: python scripts/demo_model.py")
        return found


def test_rules_need_no_openvino(tmp_path: Path) -> None:
    engine = get_engine("openvino")
    config = EngineConfig(engine="openvino", model="m.gguf", knobs={})
    assert "larger than max_num_batched_tokens=256" in (
        engine.refuses(config.replace(max_num_seqs=300), WORKLOAD) or ""
    )
    whole = config.replace(dynamic_split_fuse=False, max_num_batched_tokens=16)
    assert "cannot hold a sequence of 48" in (engine.refuses(whole, WORKLOAD) or "")
    assert engine.refuses(engine.complete(whole, WORKLOAD, frozenset()), WORKLOAD) is None
    both = config.replace(cache_size=1, num_kv_blocks=10)
    assert "give one" in (engine.refuses(both, WORKLOAD) or "")
    with pytest.raises(RequestError, match=r"no model that OpenVINO loads"):
        engine.start(config, tmp_path)
