"""What vLLM's CPU build says when it starts: lines as 0.32 printed them."""

from powerband.probes.startup_log import parse_startup_log
from powerband.records.units import GIB

LOG = """\
(APIServer pid=1) INFO 11-29 20:47:03 [api_utils.py:286] non-default args: {'host': '127.0.0.1', 'port': 40455, \
'model': '/m', 'max_model_len': 1024, 'enforce_eager': True, 'max_num_seqs': 4, 'profiler_config': \
ProfilerConfig(profiler='torch', torch_profiler_dir='/t', torch_profiler_activities=None), 'load_format': 'dummy'}
(EngineCore pid=2) INFO 11-29 20:47:40 [core.py:120] Initializing a V1 LLM engine (v0.32.0) with config: model='/m'
(Worker pid=3) INFO 11-29 20:48:07 [cpu_worker.py:260] Explicitly set (1.0/23.54) GiB for KV cache on node 0.
(EngineCore pid=2) INFO 11-29 20:48:07 [kv_cache_utils.py:2327] CPU KV cache size: 1,152 tokens, Maximum concurrency \
for 1,024 tokens per request: 1.12x
"""


def test_cache_and_concurrency() -> None:
    found = parse_startup_log(LOG)
    assert found.engine == "vllm"
    assert found.version == "0.32.0"
    assert found.report.kv_cache_bytes == GIB
    assert found.report.kv_tokens == 1152
    assert found.report.max_concurrency == 1.12
    assert found.report.weights_bytes is None


def test_settings_are_read_beside_objects_that_are_no_literals() -> None:
    settings = parse_startup_log(LOG).settings
    assert settings["max_num_seqs"] == 4
    assert settings["enforce_eager"] is True
    assert settings["load_format"] == "dummy"
    assert settings["max_model_len"] == 1024
