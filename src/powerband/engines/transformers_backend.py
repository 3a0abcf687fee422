"""Transformers in this process: one request at a time, or static batches; the naive service, made honest.

One at a time: a request is tokenised, generated and detokenised before the next one is looked at. Static: up to
``batch_size`` waiting requests are padded to the longest prompt and decoded together until the longest answer ends;
tokens are sent as they come, but no new request starts before the whole batch is over.
"""

import queue
import sys
import threading
import time
import traceback
from typing import Any

from powerband.engines.transformers_load import load_model
from powerband.engines.transformers_scores import Row, prompt_logprobs
from powerband.engines.worker_job import Backend, Counters, Job
from powerband.records.config import Value


def open_backend(model: str, knobs: dict[str, Value]) -> Backend:
    """The backend that ``knobs`` ask for."""
    loaded, tokenizer = load_model(model, knobs)
    if knobs.get("batching", "none") == "continuous":
        from powerband.engines.transformers_continuous import ContinuousBackend

        return ContinuousBackend(loaded, tokenizer, knobs)
    return GenerateBackend(loaded, tokenizer, knobs)


class TransformersBackend:
    """What every way of batching shares: the tokenizer, the settings, the limits."""

    name = "transformers"

    def __init__(self, model: Any, tokenizer: Any, knobs: dict[str, Value]) -> None:
        import torch
        import transformers

        self.model, self.tokenizer, self.knobs = model, tokenizer, knobs
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.stop_ids: frozenset[int] = model.powerband_stop_ids
        self.vocab = int(model.config.get_text_config().vocab_size)
        longest = int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 1 << 20)
        self.context_tokens = min(longest, int(knobs.get("max_length", 0)) or longest)
        self.counters = Counters()

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def chat(self, messages: list[dict[str, str]]) -> str:
        if self.tokenizer.chat_template is None:
            return "\n".join(message["content"] for message in messages)
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def prompt_logprobs(self, ids: list[int], top: int) -> list[Row]:
        return prompt_logprobs(self.model, ids, top)

    def settings(self) -> dict[str, Value]:
        import torch

        model = self.model
        return {
            **{name: value for name, value in self.knobs.items() if name not in _RESOLVED},
            "batching": self.knobs.get("batching", "none"),
            "device": str(model.device.type),
            "dtype": str(model.dtype).removeprefix("torch."),
            "attn_implementation": str(model.config._attn_implementation),
            "num_threads": torch.get_num_threads(),
        }

    def prepare(self, job: Job) -> bool:
        """Tokenise in this thread where the job still holds text; False where it does not fit and has failed."""
        job.tokenize(self.encode)
        if job.cancelled:
            job.drop()
            return False
        if len(job.ids) + job.max_tokens > self.context_tokens:
            job.fail(
                f"{len(job.ids)} prompt and {job.max_tokens} answer tokens: the context holds {self.context_tokens}"
            )
            return False
        return True


_RESOLVED = ("device", "dtype", "attn_implementation", "num_threads", "port")


class GenerateBackend(TransformersBackend):
    """``model.generate`` over one request or one static batch at a time, in a thread of its own."""

    def __init__(self, model: Any, tokenizer: Any, knobs: dict[str, Value]) -> None:
        super().__init__(model, tokenizer, knobs)
        self._most = int(knobs.get("batch_size", 8)) if knobs.get("batching") == "static" else 1
        self._patience_s = float(knobs.get("batch_wait_ms", 50)) / 1e3 if self._most > 1 else 0.0
        self._lookup = int(knobs.get("prompt_lookup_num_tokens", 0))
        self.counters.steps = 0
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="generate", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._queue.put(job)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while (jobs := self._gather()) is not None:
            for job in jobs:
                job.start()
            ready = [job for job in jobs if self.prepare(job)]
            if not ready:
                continue
            try:
                self._generate(ready)
            except Exception as error:  # noqa: BLE001 - whatever torch raises must reach the clients and the log
                traceback.print_exc(file=sys.stderr)
                for job in ready:
                    job.fail(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")

    def _gather(self) -> list[Job] | None:
        """The next batch: the first job that comes, and those that come within the patience; None at the end."""
        first = self._queue.get()
        if first is None:
            return None
        jobs, until_s = [first], time.monotonic() + self._patience_s
        while len(jobs) < self._most:
            try:
                job = self._queue.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                break
            if job is None:
                self._queue.put(None)
                break
            jobs.append(job)
        return jobs

    def _generate(self, jobs: list[Job]) -> None:
        import torch
        from transformers import StoppingCriteriaList

        longest = max(len(job.ids) for job in jobs)
        ids = torch.tensor([[0] * (longest - len(job.ids)) + job.ids for job in jobs])
        mask = torch.tensor([[0] * (longest - len(job.ids)) + [1] * len(job.ids) for job in jobs])
        device = self.model.device
        extra = {"prompt_lookup_num_tokens": self._lookup} if self._lookup else {}
        with torch.inference_mode():
            self.model.generate(
                ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=max(job.max_tokens for job in jobs),
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([_watcher(jobs, longest, self.counters)]),
                **extra,
            )
        for job in jobs:
            job.fail("generation ended early")  # does nothing where the answer is over


def _watcher(jobs: list[Job], prompt: int, counters: Counters) -> Any:
    """A stopping criterion that passes on each row's new tokens after every step, and stops the rows that are over."""
    import torch
    from transformers import StoppingCriteria

    class Watcher(StoppingCriteria):  # type: ignore[misc]
        seen = prompt

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            rows = input_ids[:, self.seen :].tolist()
            counters.steps = (counters.steps or 0) + 1
            self.seen = input_ids.shape[1]
            done = [_pass_on(job, row) for job, row in zip(jobs, rows, strict=True)]
            return torch.tensor(done, device=input_ids.device)

    return Watcher()


def _pass_on(job: Job, row: list[int]) -> bool:
    if job.cancelled:
        job.drop()
    return job.give(row)
