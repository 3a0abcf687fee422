"""An event loop that wakes to the microsecond: epoll itself rounds a timeout up to the next millisecond."""

import asyncio
import select
import selectors

_SELECT_LIMIT = 1024  # select() cannot watch a file number above this


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop whose timers are due within tens of microseconds on Linux; the platform's own loop elsewhere.

    For ``asyncio.Runner(loop_factory=new_loop)``.
    """
    if not hasattr(selectors, "EpollSelector"):
        return asyncio.new_event_loop()
    selector = _preciser_selector()
    return asyncio.SelectorEventLoop(selector) if selector.fileno() < _SELECT_LIMIT else asyncio.new_event_loop()


def _preciser_selector() -> "selectors.EpollSelector":
    class Precise(selectors.EpollSelector):
        """An epoll object is itself a file that select() can wait on, with a timeout in microseconds."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)

    return Precise()
