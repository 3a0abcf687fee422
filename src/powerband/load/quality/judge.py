"""Let a command of the user's judge answers: JSON on its stdin, exit code 0 for right; it has a time limit."""

import contextlib
import os
import shlex
import signal
import subprocess

import msgspec

from powerband.records.errors import RequestError
from powerband.records.quality import QualityAnswer, QualityPrompt, QualityTask

_CANNOT_RUN = (126, 127)


def judge_answers(task: QualityTask, answers: tuple[QualityAnswer, ...], step: int = 1) -> tuple[QualityAnswer, ...]:
    """The answers with ``right`` as the task's command says; one that takes too long counts as wrong.

    The command runs without a shell, in a process group of its own. Raises RequestError where it cannot be run.
    """
    if task.judge is None:
        return answers
    command = shlex.split(task.judge)
    prompts = task.prompts[::step]
    return tuple(
        msgspec.structs.replace(answer, right=_is_right(command, prompt, answer, task.judge_timeout_s))
        for prompt, answer in zip(prompts, answers, strict=True)
    )


def _is_right(command: list[str], prompt: QualityPrompt, answer: QualityAnswer, timeout_s: float) -> bool:
    document = {"prompt": prompt.prompt, "answer": prompt.answer, "output": answer.text}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise RequestError(f"cannot run the judge {command[0]!r}: {error.strerror}", hint="check --judge") from None
    try:
        process.communicate(msgspec.json.encode(document), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return False
    except BaseException:
        _end(process)
        raise
    if process.returncode in _CANNOT_RUN:
        raise RequestError(f"the judge {shlex.join(command)!r} cannot be run", hint="try it by hand with --judge")
    return process.returncode == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever it started ends with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
