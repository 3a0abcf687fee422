"""The NVIDIA driver's library in a process of its own: should it die, the samples end and the measurement goes on.

On hosts with several cards, and on no other, measuring processes that read it themselves died by SIGSEGV after some
minutes of samples, mostly where the sampling thread allocated next. That the library does it is likely, not proved.
"""

import contextlib
import importlib.util
import subprocess
import sys

import msgspec

from powerband.probes.nvml import NvmlProbe
from powerband.records.sample import DeviceSample
from powerband.records.value import Missing

_samples = msgspec.json.Decoder(tuple[DeviceSample, ...])
_opening = msgspec.json.Decoder(Missing | None)


class NvmlApart:
    """As NvmlProbe, for the cards that CUDA_VISIBLE_DEVICES leaves visible; ``missing`` says why samples are empty.

    ``died`` says so where the process ended by itself.
    """

    def __init__(self) -> None:
        self.missing: Missing | None = None
        self.died = ""
        self._process: subprocess.Popen[bytes] | None = None
        if importlib.util.find_spec("pynvml") is None:
            self.missing = NvmlProbe().missing  # it says whether a driver is here
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        answer = self._ask(b"")
        if answer is not None:
            self.missing = _opening.decode(answer)
        if self.missing is not None:
            self.close()

    def sample(self, t_ns: int) -> tuple[DeviceSample, ...]:
        """One reading of every card, stamped ``t_ns``; none once the process has died."""
        answer = self._ask(b"%d\n" % t_ns)
        return () if answer is None else _samples.decode(answer)

    def close(self) -> None:
        """Let the driver go; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=5)  # the end of its input ends it
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()

    def _ask(self, line: bytes) -> bytes | None:
        """The next line of the process after it was sent ``line``; None where there is none."""
        process = self._process
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.write(line)
            process.stdin.flush()
            if answer := process.stdout.readline():
                return answer
        self.close()
        self.died = f"the process that read the NVIDIA driver ended with {process.returncode}: no more samples of cards"
        self.missing = Missing(missing=self.died)
        return None


def main() -> None:
    """Say whether there is a driver, then answer each instant with a reading, until the input ends."""
    with NvmlProbe() as probe:
        _say(probe.missing)
        for line in sys.stdin:
            _say(probe.sample(int(line)))


def _say(answer: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
