"""Lines of a startup log that matter for speed, and those that are known to change little."""

import re
from dataclasses import dataclass

from powerband.records.finding import Cause, Finding


@dataclass(frozen=True, slots=True)
class LogLine:
    """A known kind of line: the cause it points to, or None for one that is blamed and rarely to blame."""

    pattern: re.Pattern[str]
    cause: Cause | None
    says: str
    remedy: str
    test: str

    def finding(self) -> Finding:
        assert self.cause is not None
        return Finding(cause=self.cause, share=0.5, evidence=self.says, remedy=self.remedy, test=self.test)


def _line(pattern: str, cause: Cause | None, says: str, remedy: str, test: str) -> LogLine:
    return LogLine(re.compile(pattern, re.IGNORECASE), cause, says, remedy, test)


# In the order in which they count: a wrong kernel costs more than eager mode does.
KNOWN = (
    _line(r"can (be )?run with (awq|gptq)_marlin.{0,80}(forced|explicitly)|quantization=(awq|gptq) was forced",
          "kernel_choice", "the log says that a faster kernel for these weights was passed over by a flag",
          "drop --quantization, or name the Marlin kernel", "the same traffic without the flag"),
    _line(r"(does not have|no) native support for fp8|weight-only fp8 compression will be used",
          "quantisation_overhead", "the log says that this card has no FP8 arithmetic: weights are widened before use",
          "plain weights at high load, or a card with FP8", "the same traffic with plain weights"),
    _line(r"is not fully optimi[sz]ed yet", "quantisation_overhead",
          "the log says that kernels for this quantisation are not optimised", "another format",
          "the same traffic with plain weights"),
    _line(r"custom allreduce is disabled|p2p.{0,40}(disabled|not supported|failed)", "communication_bound",
          "the log says that cards talk without peer access", "NVLink, or fewer cards a replica",
          "one card against several"),
    _line(r"enforce_eager is (set|true)|cuda ?graph(s)? (is|are) (disabled|not supported)|enforce_eager=True",
          "launch_bound", "the log says that CUDA graphs are off", "leave eager mode", "eager against graphs"),
    # Tuned and default configs differed by 0 to 60 % with the card and batch: the line alone says nothing.
    _line(r"using default moe config|config file not found at .{0,120}device_name", None,
          "the log says that a default MoE config is used: often blamed, at some shapes it changes nothing", "-",
          "time the kernel with a tuned config first"),
)  # fmt: skip


def read_log_lines(text: str) -> list[LogLine]:
    """The known kinds of line that a log holds, each once, what matters most first."""
    return [line for line in KNOWN if line.pattern.search(text)]
