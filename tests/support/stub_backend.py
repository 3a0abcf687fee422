"""A backend without a model: a token each ``step_s``, ids counted up from 0, all jobs at once; a worker around it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from powerband.engines.http_server import Connection
from powerband.engines.worker_api import Api
from powerband.engines.worker_job import Counters, Job
from powerband.records.config import Value

# Two tokens make one character of two bytes, so that text and tokens do not run in step.
HALVES = {7: b"\xc3", 8: b"\xa9"}


class StubBackend:
    name, version = "stub", "stub 1"
    context_tokens = 64
    stop_ids = frozenset({5})
    vocab = 100

    def __init__(self, step_s: float = 0.002) -> None:
        self.counters = Counters(steps=0)
        self.tokenized_in: list[str] = []
        self.cancelled: list[Job] = []
        self._step_s, self._over = step_s, threading.Event()
        self._threads: list[threading.Thread] = []

    def encode(self, text: str) -> list[int]:
        self.tokenized_in.append(threading.current_thread().name)
        return [len(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return b"".join(HALVES.get(token, b" %d" % token) for token in ids).decode(errors="replace")

    def chat(self, messages: list[dict[str, str]]) -> str:
        return " ".join(f"{message['role']}: {message['content']}" for message in messages)

    def submit(self, job: Job) -> None:
        thread = threading.Thread(target=self._answer, args=(job,), name=f"stub-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def settings(self) -> dict[str, Value]:
        return {"step_s": self._step_s}

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(5)

    def _answer(self, job: Job) -> None:
        job.start()
        job.tokenize(self.encode)
        if job.ids and job.ids[0] == 99:
            job.fail("planted failure")
            return
        token = 0
        while not self._over.wait(self._step_s):
            if job.cancelled:
                self.cancelled.append(job)
                job.drop()
                return
            self.counters.steps = (self.counters.steps or 0) + 1
            if job.give([token]):
                return
            token += 1


@contextmanager
def served(backend: StubBackend, tokenizer_threads: int = 0) -> Iterator[str]:
    """The worker's HTTP around ``backend``, in a thread of its own; gives its URL."""
    ready = threading.Event()
    state: dict[str, object] = {}

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        api, over = Api(backend, "stub-model", tokenizer_threads), asyncio.Event()
        listener = await loop.create_server(lambda: Connection(loop, api.serve), "127.0.0.1", 0)
        state.update(port=listener.sockets[0].getsockname()[1], stop=lambda: loop.call_soon_threadsafe(over.set))
        ready.set()
        await over.wait()
        listener.close()
        api.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{state['port']}"
    finally:
        stop = state["stop"]
        assert callable(stop)
        stop()
        thread.join(10)
