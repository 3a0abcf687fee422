"""Client processes: the same run shared out, one clock for all, traces put together by the caller.

``python -m powerband.load.worker`` is one of them. It reads a Job (one line, the length; then MessagePack), says
``ready``, reads the start instant, and then writes frames: progress while it runs, its PartResult at the end.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, TypeVar

import msgspec

from powerband.load.part import Job, PartResult
from powerband.load.process import do_part, request_payloads
from powerband.load.target import Progress
from powerband.load.tokens import find_tokens
from powerband.records.errors import MachineError, PowerbandError

_LEAD_NS = 50_000_000
_T = TypeVar("_T")


class _Frame(msgspec.Struct):
    progress: Progress | None = None
    result: PartResult | None = None
    error: str | None = None


class Workers:
    """As many processes as the job has shares."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def run(self, progress: Callable[[Progress], None] | None) -> list[PartResult]:
        """Start them, give the start instant when all are ready, and wait; Ctrl-C reaches them too."""
        job = self._job
        with contextlib.ExitStack() as stack:
            processes = [stack.enter_context(_started()) for _ in range(job.shares)]
            for share, process in enumerate(processes):
                _write(process.stdin, msgspec.structs.replace(job, share=share))
            for process in processes:
                if _read(process.stdout, _Frame).error is not None:
                    raise MachineError("a client process did not start", hint="see the lines above")
            start_ns = time.monotonic_ns() + _LEAD_NS
            for process in processes:
                _write(process.stdin, start_ns)
            return self._collect(processes, progress)

    def _collect(
        self, processes: list[subprocess.Popen[bytes]], progress: Callable[[Progress], None] | None
    ) -> list[PartResult]:
        results: list[PartResult | None] = [None] * len(processes)
        states: list[Progress | None] = [None] * len(processes)
        with selectors.DefaultSelector() as selector:
            for share, process in enumerate(processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, share)
            while any(result is None for result in results):
                try:
                    ready = selector.select()
                except KeyboardInterrupt:
                    continue  # the processes have it too and will report
                for key, _ in ready:
                    share = key.data
                    frame = _read(processes[share].stdout, _Frame)
                    if frame.error is not None:
                        raise MachineError(f"a client process failed: {frame.error}", hint="try --workers 1")
                    states[share] = frame.progress or states[share]
                    if frame.result is not None:
                        results[share] = frame.result
                        selector.unregister(key.fileobj)
                        _stop_others(frame.result, processes, results)
                if progress is not None and all(states) and any(key.data == 0 for key, _ in ready):
                    progress(_sum([state for state in states if state is not None]))
        return [result for result in results if result is not None]


def _stop_others(
    result: PartResult, processes: list[subprocess.Popen[bytes]], results: list[PartResult | None]
) -> None:
    """Errors or saturation that one part saw hold for the run; each part judges its precision by itself."""
    if result.stopped in ("too_many_errors", "saturated"):
        for process, other in zip(processes, results, strict=True):
            if other is None:
                process.send_signal(signal.SIGINT)


def _sum(states: list[Progress]) -> Progress:
    def middle(values: list[float | None]) -> float | None:
        known = sorted(value for value in values if value is not None)
        return known[len(known) // 2] if known else None

    return Progress(
        elapsed_s=max(state.elapsed_s for state in states),
        planned=sum(state.planned for state in states),
        sent=sum(state.sent for state in states),
        completed=sum(state.completed for state in states),
        errors=sum(state.errors for state in states),
        in_flight=sum(state.in_flight for state in states),
        output_tokens=sum(state.output_tokens for state in states),
        ttft_s=middle([state.ttft_s for state in states]),
        tpot_s=middle([state.tpot_s for state in states]),
        left_s=max((state.left_s for state in states if state.left_s is not None), default=None),
    )


@contextlib.contextmanager
def _started() -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "powerband.load.worker"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_start(out: IO[bytes]) -> int:
    """Say that this process is ready, and wait for the instant."""
    _write(out, _Frame())
    return _read(sys.stdin.buffer, int)


def _tell(out: IO[bytes], progress: Progress) -> None:
    """To the process that asked for the run; where that was killed, the run is over, as by Ctrl-C."""
    try:
        _write(out, _Frame(progress=progress))
    except BrokenPipeError:
        os.kill(os.getpid(), signal.SIGINT)


def _write(pipe: IO[bytes] | None, value: object) -> None:
    assert pipe is not None
    data = msgspec.msgpack.encode(value)
    pipe.write(b"%d\n" % len(data) + data)
    pipe.flush()


def _read(pipe: IO[bytes] | None, kind: type[_T]) -> _T:
    assert pipe is not None
    head = pipe.readline()
    if not head:
        raise MachineError("a client process ended early", hint="see the lines above, or try --workers 1")
    data = pipe.read(int(head))
    if len(data) < int(head):
        raise MachineError("a client process ended in mid-sentence", hint="see the lines above, or try --workers 1")
    return msgspec.msgpack.decode(data, type=kind)


def main() -> int:
    """One client process: prompts of its own making, its share of the requests, its result on stdout."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    job = _read(sys.stdin.buffer, Job)
    try:
        payload = request_payloads(job.target, job.workload, find_tokens(job.target, job.workload.seed), job.salt)
        result = do_part(job, payload, lambda progress: _tell(out, progress), lambda: _await_start(out))
        _write(out, _Frame(result=result))
    except PowerbandError as error:
        _write(out, _Frame(error=error.message))
        return error.exit_code
    except KeyboardInterrupt:
        _write(out, _Frame(error="stopped before it began"))
        return 130
    except BrokenPipeError:
        os._exit(130)  # nobody listens any more, and the end of the interpreter would try to write again
    return 0


if __name__ == "__main__":
    sys.exit(main())
