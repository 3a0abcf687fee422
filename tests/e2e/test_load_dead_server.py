"""A server that dies under a closed loop refuses every later request at once: the run ends, each of them an error."""

import time

from powerband.load.runner import run_load
from powerband.load.target import Target
from powerband.records.workload import RequestSpec, Workload
from tests.support.faking import fake


def test_thousands_of_refusals_end_the_run_and_do_not_nest() -> None:
    with fake("--die-after", "40") as url:
        spec = RequestSpec(offset_ns=0, input_tokens=4, output_tokens=2)
        workload = Workload(requests=(spec,) * 5000, source="test", concurrency=4)
        loaded = run_load(Target(url=url, model="fake"), workload, t0_ns=time.monotonic_ns(), deadline_s=30.0)
    assert loaded.stopped_because == "done"
    assert len(loaded.traces) == 5000
    assert sum(trace.status == "error" for trace in loaded.traces) > 4900
