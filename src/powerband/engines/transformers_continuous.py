"""Transformers' own continuous batching: its manager with a paged cache, fed and drained by threads of ours."""

import logging
import sys
import threading
from typing import Any

from powerband.engines.transformers_backend import TransformersBackend
from powerband.engines.worker_job import Counters, Job
from powerband.records.config import Value
from powerband.records.errors import RequestError

_POLL_S = 0.1
_CPU_CACHE, _CPU_TOKENS = 0.1, 512  # share of the host's memory for the cache, and tokens of a step
_LOOK_EVERY = 32  # results between two looks at the gauges and at clients that left
_FIELDS = ("max_batch_tokens", "num_blocks", "block_size", "max_memory_percent", "max_requests_per_batch")


class ContinuousBackend(TransformersBackend):
    """Jobs go to ``ContinuousBatchingManager.add_request``; its results come back token by token."""

    def __init__(self, model: Any, tokenizer: Any, knobs: dict[str, Value]) -> None:
        super().__init__(model, tokenizer, knobs)
        self.counters.has_phases = False  # the manager does not say when it takes a request up
        self._manager = open_manager(model, knobs)
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._started = False
        self._over = threading.Event()
        self._ended = ""  # why the manager's thread is gone
        self._complaints = Complaints()
        logging.getLogger("ContinuousBatchingLogger").addHandler(self._complaints)
        self._thread = threading.Thread(target=self._drain, name="results", daemon=True)

    def submit(self, job: Job) -> None:
        job.start()
        if self._ended:
            job.fail(self._ended)
            return
        if not self.prepare(job):
            return
        with self._lock:
            self._count += 1
            name = f"job-{self._count}"
            self._jobs[name] = job
        ends = sorted(job.stop_ids) or [-1]
        self._manager.add_request(
            job.ids, request_id=name, max_new_tokens=job.max_tokens, streaming=True, eos_token_id=ends
        )
        if not self._started:
            # With asynchronous batching the manager fails where it starts without a request.
            self._started = True
            self._manager.start()
            self._thread.start()

    def close(self) -> None:
        self._over.set()

    def settings(self) -> dict[str, Value]:
        resolved = getattr(self._manager, "continuous_batching_config", None)
        found = {name: getattr(resolved, name, None) for name in (*_FIELDS, "use_cuda_graph", "use_async_batching")}
        plain = {name: value for name, value in found.items() if isinstance(value, bool | int | float)}
        return {**super().settings(), **plain}

    def _drain(self) -> None:
        """Hand every result to its job until the end; where the manager's thread dies, all jobs fail."""
        count = 0
        while not self._over.is_set():
            result = self._manager.get_result(timeout=_POLL_S)
            if result is not None:
                self._pass_on(result)
            elif not self._manager.is_running():
                why = self._complaints.first or "see the log"
                self._fail_all(f"the continuous batching thread of transformers ended: {why}")
                return
            count += 1
            if result is None or count % _LOOK_EVERY == 0:
                self._cancel()
                self._look()

    def _pass_on(self, result: Any) -> None:
        job = self._jobs.get(result.request_id)
        if job is None:
            return
        error = getattr(result, "error", None)
        if error:
            job.fail(str(error))
        else:
            job.give([int(token) for token in result.generated_tokens[job.given :]])
        if result.is_finished() and not job.over:
            job.fail("generation ended early")
        if job.over:
            self._jobs.pop(result.request_id, None)

    def _cancel(self) -> None:
        """Give up the jobs whose clients are gone."""
        for name, job in [(name, job) for name, job in list(self._jobs.items()) if job.cancelled]:
            job.drop()
            self._manager.cancel_request(name)
            self._jobs.pop(name, None)

    def _look(self) -> None:
        """The gauges, from the manager's own scheduler and cache; those that a version lacks stay unknown."""
        processor = getattr(self._manager, "batch_processor", None)
        scheduler, cache = getattr(processor, "scheduler", None), getattr(processor, "cache", None)
        update_gauges(self.counters, scheduler, cache, len(self._jobs))

    def _fail_all(self, message: str) -> None:
        self._ended = message
        sys.stderr.write(message + "\n")
        for job in list(self._jobs.values()):
            job.fail(message)
        self._jobs.clear()


def update_gauges(counters: Counters, scheduler: Any, cache: Any, under_way: int) -> None:
    """Running and waiting requests and the share of cache blocks in use."""
    active = getattr(scheduler, "active_requests", None)
    with counters.lock:
        if active is not None:
            counters.running = min(len(active), under_way)
            counters.waiting = max(under_way - counters.running, 0)
        total, free = getattr(cache, "num_blocks", None), getattr(cache, "get_num_free_blocks", None)
        if isinstance(total, int) and total > 0 and callable(free):
            counters.kv_used_ratio = 1.0 - float(free()) / total


def open_manager(model: Any, knobs: dict[str, Value]) -> Any:
    """The manager with the settings given; RequestError where this transformers has none."""
    try:
        from transformers import GenerationConfig
        from transformers.generation import ContinuousBatchingConfig
    except ImportError:
        raise RequestError(
            "this transformers has no continuous batching",
            hint="install transformers 5.3 or newer, or use batching=static",
        ) from None
    known = ContinuousBatchingConfig.__dataclass_fields__
    asked: dict[str, Any] = {name: knobs[name] for name in _FIELDS if knobs.get(name)}
    if knobs.get("cuda_graphs", "auto") != "auto":
        asked["use_cuda_graph"] = knobs["cuda_graphs"] == "on"
    if model.device.type == "cpu":  # where nothing is said, transformers takes most of the host's memory
        asked.setdefault("max_batch_tokens", _CPU_TOKENS)
        if "num_blocks" not in asked:
            asked.setdefault("max_memory_percent", _CPU_CACHE)
    if missing := [name for name in asked if name not in known]:
        raise RequestError(f"this transformers has no {missing[0]} for continuous batching", hint="leave it out")
    # eos -1: what ends an answer comes with each request.
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(
        generation_config=generation, continuous_batching_config=ContinuousBatchingConfig(**asked)
    )
    if hasattr(manager, "warmup"):
        import torch

        # Captures graphs before the first request, as its own serving does. Not in inference mode: the manager's thread
        # may run without it, and cannot write to tensors that were made in it.
        with torch.no_grad():
            manager.warmup()
    return manager


class Complaints(logging.Handler):
    """Keeps the first error that the manager's own logger told: why its thread ended."""

    def __init__(self) -> None:
        super().__init__(level=logging.ERROR)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().strip().splitlines()
        self.first = self.first or (lines[0] if lines else "")
