"""When bytes reached this machine: by the kernel's stamp, where the event loop was busy elsewhere meanwhile."""

import contextlib
import socket
import struct
import sys
import time

# asm-generic/socket.h and linux/net_tstamp.h: have a stamp taken in software on receipt, and reported.
_SO_TIMESTAMPING, _ON_RECEIPT = 37, 1 << 3 | 1 << 4
_TIMESPEC = struct.Struct("@ll")
_ROOM = socket.CMSG_SPACE(3 * _TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
_MOST_NS = 10_000_000_000  # a stamp farther back than this tells of a clock that was set


def ask_for_stamps(sock: socket.socket) -> bool:
    """Whether ``receive`` will find stamps on this TCP socket; they cost only what asks for them."""
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _ON_RECEIPT)
        return True
    return False


def receive(sock: socket.socket, buffer: bytearray) -> tuple[int, int]:
    """Bytes read into ``buffer``, and the instant at which the last of them came, in ns of the monotonic clock.

    The stamp is of the wall clock: how long ago it was is taken off the monotonic one, so that only a clock set in
    between could mislead. Without a stamp the instant is now. Raises what ``recv`` raises.
    """
    count, ancillary, _, _ = sock.recvmsg_into([buffer], _ROOM)
    wall_ns = time.time_ns()  # before the other clock: what comes between the two makes it later, never too early
    now_ns = time.monotonic_ns()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPING and len(data) >= _TIMESPEC.size:
            seconds, rest = _TIMESPEC.unpack_from(data)
            ago_ns = wall_ns - (seconds * 1_000_000_000 + rest)
            if 0 < ago_ns < _MOST_NS:
                return count, now_ns - ago_ns
    return count, now_ns
