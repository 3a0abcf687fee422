"""OpenVINO GenAI in this process: one thread adds requests, takes steps and hands out tokens."""

import queue
import sys
import threading
import traceback
from typing import Any

from powerband.engines.openvino_knobs import AUTO, PROPERTIES, SCHEDULER
from powerband.engines.worker_job import Backend, Counters, Job
from powerband.records.config import Value
from powerband.records.errors import RequestError

_CONTEXT = 1 << 20  # where the model does not say how long a sequence may be
_LOOK_EVERY = 16  # steps between two readings of the pipeline's own metrics


def open_backend(model: str, knobs: dict[str, Value]) -> Backend:
    """The pipeline with the settings that ``knobs`` ask for; RequestError where OpenVINO refuses them."""
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    for name in SCHEDULER:
        value = knobs.get(name, 0)
        if name in knobs and (value or isinstance(value, bool)):
            setattr(scheduler, name, value)
    properties = {name: knobs[name] for name in PROPERTIES if knobs.get(name, AUTO) not in (AUTO, 0)}
    if int(knobs.get("prompt_lookup_num_tokens", 0)):
        properties["prompt_lookup"] = True
    try:
        pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler_config=scheduler, device=str(knobs.get("device", "CPU")), properties=properties
        )
    except (RuntimeError, ValueError, TypeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise RequestError(f"OpenVINO cannot load {model!r}: {lines[-1]}", hint="see the log above") from error
    return OpenVinoBackend(pipeline, openvino_genai, knobs)


class OpenVinoBackend:
    """Jobs wait in a queue until the stepping thread adds them; it sleeps while there are none."""

    name = "openvino"

    def __init__(self, pipeline: Any, genai: Any, knobs: dict[str, Value]) -> None:
        self._pipeline, self._genai = pipeline, genai
        self._tokenizer = pipeline.get_tokenizer()
        self.version = f"openvino-genai {genai.__version__}"
        self.context_tokens = _CONTEXT
        self.stop_ids = frozenset({int(self._tokenizer.get_eos_token_id())})
        self.vocab = _vocab(self._tokenizer)
        self.counters = Counters(steps=0, has_phases=False)
        self._lookup = int(knobs.get("prompt_lookup_num_tokens", 0))
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._active: dict[int, tuple[Job, Any]] = {}
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
        self._thread.start()

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False).input_ids.data[0]]

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)) if ids else ""

    def chat(self, messages: list[dict[str, str]]) -> str:
        return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    def submit(self, job: Job) -> None:
        self._queue.put(job)

    def settings(self) -> dict[str, Value]:
        """Nothing: the pipeline does not tell what it runs with, and what was asked is no answer to that."""
        return {}

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while True:
            try:
                if not self._take_new():
                    return
                self._step()
            except Exception as error:  # noqa: BLE001 - whatever OpenVINO raises must reach the clients and the log
                traceback.print_exc(file=sys.stderr)
                for job, _ in self._active.values():
                    job.fail(f"{type(error).__name__}: {error}")
                self._active.clear()

    def _take_new(self) -> bool:
        """Add the jobs that came; where nothing is under way, wait for one. False at the end."""
        while True:
            try:
                job = self._queue.get(block=not self._active)
            except queue.Empty:
                return True
            if job is None:
                return False
            self._add(job)

    def _add(self, job: Job) -> None:
        job.tokenize(self.encode)
        if job.cancelled:
            job.drop()
            return
        import numpy as np
        import openvino

        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = job.max_tokens, False, True
        if self._lookup:
            config.num_assistant_tokens, config.max_ngram_size = self._lookup, 3
        self._number += 1
        ids = openvino.Tensor(np.array([job.ids], dtype=np.int64))
        handle = self._pipeline.add_request(self._number, ids, config)
        self._active[self._number] = (job, handle)

    def _step(self) -> None:
        if not self._active:
            return
        self._pipeline.step()
        self.counters.steps = steps = (self.counters.steps or 0) + 1
        for number, (job, handle) in list(self._active.items()):
            if job.cancelled:
                job.drop()
            while handle.can_read() and not job.over:
                if job.given == 0:
                    job.start()
                for output in handle.read().values():
                    job.give([int(token) for token in output.generated_ids])
            if job.over:
                handle.stop()
                del self._active[number]
        if steps % _LOOK_EVERY == 0:
            self._look()

    def _look(self) -> None:
        metrics = self._pipeline.get_metrics()
        with self.counters.lock:
            self.counters.kv_used_ratio = float(metrics.cache_usage) / 100


def _vocab(tokenizer: Any) -> int:
    """Ids that a prompt may hold; where the tokenizer does not list its words, any 32-bit id is let through."""
    try:
        return len(tokenizer.get_vocab())
    except (AttributeError, RuntimeError):
        return 1 << 31
