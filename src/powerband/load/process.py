"""What a client process does, be it this one or a worker: make the requests' bytes, run a part on an event loop."""

import asyncio
import contextlib
import gc
import os
import resource
from collections.abc import Callable

from powerband.load.body import request_builder
from powerband.load.part import Job, Part, PartResult
from powerband.load.precise_loop import new_loop
from powerband.load.prompts import Prompts
from powerband.load.target import Progress, Target
from powerband.load.tokens import TokenSource
from powerband.records.workload import Workload

_SOCKETS = 1 << 16  # in flight at once, for which there is room from the start


def request_payloads(target: Target, workload: Workload, source: TokenSource, salt: int) -> Callable[[int], bytes]:
    """A function that gives the bytes of the n-th request."""
    prompts = Prompts(source.pool, workload, salt, source.extra_tokens, source.tokens_per_unit)
    build = request_builder(target, source.as_ids)
    return lambda index: build(prompts.of(index), workload.requests[index].output_tokens)


def do_part(
    job: Job,
    payload: Callable[[int], bytes],
    progress: Callable[[Progress], None] | None,
    start: Callable[[], int],
) -> PartResult:
    """Run one part in this process, on an event loop of its own.

    ``start`` is asked for the schedule's zero when all is ready: what a large workload takes to lay out, and the
    collector's last round, come before it.
    """

    async def go() -> PartResult:
        part = Part(job, payload, progress)
        gc.collect()
        gc.freeze()
        return await part.execute(start())

    _make_room_for_sockets()
    if not job.target.address()[2]:  # over TLS asyncio leaves cycles behind
        gc.disable()  # a collection stops the clock for tens of ms; what a request leaves behind holds no cycle
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(go())
    finally:
        gc.enable()
        gc.unfreeze()


def _make_room_for_sockets() -> None:
    """One socket a request in flight: take what the system allows, and have the kernel lay its table out now.

    Where a process has several threads, Linux stops it for up to tens of ms each time that the table doubles
    (expand_fdtable waits for a grace period): at 3,000 requests/s up to half of the first 200 ms's starts were late.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    highest = (_SOCKETS if soft == resource.RLIM_INFINITY else min(soft, _SOCKETS)) - 1
    with contextlib.suppress(OSError):
        own = os.open(os.devnull, os.O_RDONLY)
        if not _is_open(highest):
            os.close(os.dup2(own, highest, inheritable=False))
        os.close(own)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
