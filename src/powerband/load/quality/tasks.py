"""Tasks for the quality gate: the built-in ones, or a JSONL file of the user's."""

from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import msgspec

from powerband.records.errors import RequestError, in_words, unknown_name
from powerband.records.quality import Preset, QualityPrompt, QualityTask, Syntax

PRESETS: tuple[Preset, ...] = get_args(Preset)
_HINT = 'one JSON object a line: {"prompt": "...", "answer": "..."} (answer optional), or {"text": "..."} held-out text'
_SUMMARIES = 16
_MOST_LINES = 100_000


def load_task(
    name: str,
    *,
    limits: str | None = None,
    judge: str | None = None,
    judge_timeout_s: float = 10.0,
    most: int = 0,
    answer_tokens: int = 0,
) -> QualityTask:
    """The task called ``name``: chat, summarise, code, maths, or the path of a JSONL file.

    ``limits`` names the preset whose limits hold, for a file (default chat); ``most`` keeps the first so many prompts
    and passages, and ``answer_tokens`` bounds an answer (0: as the task says). Raises RequestError for an unknown
    preset, and for a file that is empty or cannot be read.
    """
    if limits is not None and limits not in PRESETS:
        raise unknown_name("preset", limits, PRESETS)
    if name in PRESETS:
        task = _built_in(name)
        if limits is not None:
            task = msgspec.structs.replace(task, preset=limits)
    elif Path(name).is_file():
        task = _from_file(Path(name), limits or "chat")
    else:
        error = unknown_name("task", name, PRESETS)
        raise RequestError(error.message, hint=f"{error.hint}; or a JSONL file, {_HINT}")
    if judge is not None:
        task = msgspec.structs.replace(task, judge=judge, judge_timeout_s=judge_timeout_s)
    if answer_tokens > 0:
        task = msgspec.structs.replace(task, max_tokens=answer_tokens)
    if most > 0:
        task = msgspec.structs.replace(task, prompts=task.prompts[:most], passages=task.passages[:most])
    return task


def _built_in(preset: Preset) -> QualityTask:
    if preset == "summarise":
        passages = _passages("prose.txt")
        asked = tuple(
            QualityPrompt(prompt=f"Summarise this text in two sentences.\n\n{passage}")
            for passage in passages[:_SUMMARIES]
        )
        return QualityTask(name=preset, preset=preset, prompts=asked, passages=passages[_SUMMARIES:])
    held_out = {"chat": "prose.txt", "code": "code.txt", "maths": "maths.txt"}
    syntax: Syntax = "python" if preset == "code" else "none"
    return QualityTask(
        name=preset,
        preset=preset,
        prompts=_prompts(_read(f"{preset}.jsonl"), preset),
        passages=_passages(held_out[preset]),
        syntax=syntax,
        max_tokens=128 if preset == "chat" else 192,
    )


def _read(name: str) -> str:
    return files("powerband.load.quality").joinpath("data", name).read_text(encoding="utf-8")


def _passages(name: str) -> tuple[str, ...]:
    separator = "\n%%\n" if name == "code.txt" else "\n\n"
    return tuple(part.strip() for part in _read(name).split(separator) if part.strip())


def _prompts(text: str, where: str) -> tuple[QualityPrompt, ...]:
    return tuple(_rows(text, where)[0])


def _from_file(path: Path, preset: Preset) -> QualityTask:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read the task {path}: {in_words(error)}", hint=_HINT) from None
    prompts, passages = _rows(text, str(path))
    if not prompts and not passages:
        raise RequestError(f"the task {path} is empty", hint=_HINT)
    return QualityTask(
        name=path.name,
        preset=preset,
        prompts=tuple(prompts),
        passages=tuple(passages) or _passages("prose.txt"),
        syntax="python" if preset == "code" else "none",
        max_tokens=192,
    )


def _rows(text: str, where: str) -> tuple[list[QualityPrompt], list[str]]:
    prompts: list[QualityPrompt] = []
    passages: list[str] = []
    for number, line in enumerate(text.splitlines()[:_MOST_LINES], 1):
        if not line.strip():
            continue
        try:
            row: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"{where}, line {number} is no JSON object: {in_words(error)}", hint=_HINT) from None
        prompt, answer, passage = row.get("prompt"), row.get("answer"), row.get("text")
        if isinstance(passage, str) and passage.strip() and prompt is None:
            passages.append(passage)
        elif isinstance(prompt, str) and prompt.strip() and isinstance(answer, str | int | float | None):
            prompts.append(QualityPrompt(prompt=prompt, answer=None if answer is None else str(answer)))
        else:
            raise RequestError(f"{where}, line {number} holds neither a prompt nor a text", hint=_HINT)
    return prompts, passages
