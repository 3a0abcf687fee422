"""Readiness of many sockets at the price of few: one epoll of our own inside the event loop's."""

import asyncio
import select
import time
from typing import Protocol

_AT_ONCE = 1024


class Watched(Protocol):
    def readable(self) -> None: ...

    def writable(self) -> None: ...


class Watch:
    """Calls ``readable`` and ``writable`` of what is watched; the event loop sees one file that is ready or not.

    asyncio spends a handle, a context and a lookup on each ready socket, which at 50,000 chunks a second is half of
    the client's time. Where there is no epoll, asyncio watches each socket itself.

    ``looked_ns``: what is called now became ready after this instant, when the watch looked the last time but one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[int, Watched] = {}
        self.looked_ns = self._looks_ns = 0
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            loop.add_reader(self._epoll.fileno(), self._ready)

    def add(self, fd: int, watched: Watched) -> None:
        self._watched[fd] = watched
        if self._epoll is not None:
            self._epoll.register(fd, select.EPOLLIN)
        else:
            self._loop.add_reader(fd, watched.readable)

    def want_write(self, fd: int, wanted: bool) -> None:
        if self._epoll is not None:
            self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)
        elif wanted:
            self._loop.add_writer(fd, self._watched[fd].writable)
        else:
            self._loop.remove_writer(fd)

    def remove(self, fd: int) -> None:
        """To be called before the socket is closed, which takes it out of the epoll by itself."""
        self._watched.pop(fd, None)
        if self._epoll is None:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)

    def close(self) -> None:
        if self._epoll is not None and not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _ready(self) -> None:
        assert self._epoll is not None
        ready = self._epoll.poll(0, _AT_ONCE)
        self.looked_ns, self._looks_ns = self._looks_ns, time.monotonic_ns()
        for fd, events in ready:
            watched = self._watched.get(fd)
            if watched is None:
                continue  # closed by what an earlier one of this round did
            if events & select.EPOLLOUT:
                watched.writable()
            if events & ~select.EPOLLOUT and self._watched.get(fd) is watched:
                watched.readable()
