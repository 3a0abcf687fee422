"""Where a prompt's tokens come from: the server's tokenizer, or text whose token count is calibrated."""

import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from powerband.load.local_tokenizer import LEAST_WORDS, LocalTokenizer
from powerband.load.prompts import Pool
from powerband.load.target import PATHS, Target
from powerband.load.words import WORDS, english_like
from powerband.records.errors import EngineError, RequestError

_POOL_WORDS = 8_000
_TIMEOUT_S = 30.0
_FEW, _MANY = 64, 576  # words of the two calibration prompts
_BEYOND = 1 << 31  # any token id or count of tokens


@dataclass(frozen=True, slots=True)
class TokenSource:
    """The pool to cut prompts from; ``as_ids`` when they go as token ids; ``extra_tokens`` is the server's template."""

    pool: Pool
    as_ids: bool
    note: str
    extra_tokens: int = 0
    tokens_per_unit: float = 1.0


def find_tokens(target: Target, seed: int) -> TokenSource:
    """Token ids where the endpoint takes them and there is a tokenizer, else words of a known count of tokens.

    The tokenizer is the target's own file where it names one, else the server's (for text: the words that its /tokenize
    shows as one token each); without either, words are calibrated by the server's usage.
    """
    rng = np.random.default_rng([seed, 1])
    takes_ids = target.endpoint in ("completions", "llamacpp") and not target.as_text
    if target.tokenizer is not None:
        return _local_tokens(target, LocalTokenizer(Path(target.tokenizer)), rng, takes_ids)
    if takes_ids:
        ids = tokenize(target, english_like(_POOL_WORDS, rng))
        if ids is not None and len(set(ids)) > 1:
            units = [b"%d" % token for token in ids]
            pool = Pool(units, sorted(set(units)), b",")
            return TokenSource(pool, True, f"prompts are exact token ids from {target.url}/tokenize")
    return _calibrated_words(target, rng)


def _local_tokens(target: Target, tokenizer: LocalTokenizer, rng: np.random.Generator, takes_ids: bool) -> TokenSource:
    by = f"by {target.tokenizer} (tokenizers library)"
    if takes_ids and (pool := tokenizer.id_pool(_POOL_WORDS, rng)) is not None:
        return TokenSource(pool, True, f"prompts are exact token ids {by}")
    pool = tokenizer.word_pool(_POOL_WORDS, rng)
    if pool is None:
        raise RequestError(
            f"{target.tokenizer} has too few English words of one token each",
            hint="leave --tokenizer out: words are then calibrated by the server's own count",
        )
    said = f"prompts are text of an exact count of tokens {by}"
    counted = _usage(target, pool.words(_FEW))
    if counted is None:
        return TokenSource(pool, False, f"{said}; what the server's template adds is not known")
    extra = counted - _FEW
    if extra < 0:
        raise RequestError(
            f"{target.tokenizer} is not the server's: {_FEW} of its tokens are {counted} to the server",
            hint="name the tokenizer of the model that is served",
        )
    return TokenSource(pool, False, f"{said}; the server adds {extra}", extra)


def tokenize(target: Target, text: str) -> list[int] | None:
    """Token ids by the server's own tokenizer, or None where it has none: llama.cpp's, vLLM's and TGI's ways."""
    asked: list[dict[str, Any]] = [
        {"content": text, "add_special": False, "prompt": text, "model": target.model, "add_special_tokens": False},
        {"inputs": text},
    ]
    for body in asked:
        status, answer = _post(target, "/tokenize", body)
        if status != 200:
            continue
        found = answer.get("tokens") if isinstance(answer, dict) else answer
        if isinstance(found, list) and found:
            ids = [_count(item.get("id") if isinstance(item, dict) else item) for item in found]
            if None not in ids:
                return [item for item in ids if item is not None]
    return None


def _count(said: Any) -> int | None:
    """What a server says, where it can be a token id or a count of tokens."""
    return said if type(said) is int and 0 <= said < _BEYOND else None


def _single_words(target: Target) -> list[str]:
    """Words that are one token behind a space, by the pieces that the server's /tokenize shows; none where it does not.

    llama.cpp shows them as ``piece`` (asked by with_pieces), vLLM as ``token_strs`` (return_token_strs), TGI as
    ``text``; the space is written as itself, as Ġ or as ▁.
    """
    text = " " + " ".join(WORDS)
    plain = {"add_special": False, "add_special_tokens": False, "with_pieces": True, "return_token_strs": True}
    for body in ({"content": text, "prompt": text, "model": target.model, **plain}, {"inputs": text}):
        status, answer = _post(target, "/tokenize", body)
        pieces = _pieces(answer) if status == 200 else []
        spaced = [piece.replace("Ġ", " ").replace("▁", " ") for piece in pieces]
        ends = [following.startswith(" ") for following in spaced[1:]] + [True]
        found = {piece[1:] for piece, end in zip(spaced, ends, strict=False) if end and piece.startswith(" ")}
        if found:
            return [word for word in WORDS if word in found]
    return []


def _pieces(answer: Any) -> list[str]:
    shown = answer.get("token_strs") or answer.get("tokens") if isinstance(answer, dict) else answer
    if not isinstance(shown, list):
        return []
    texts = [item.get("piece", item.get("text")) if isinstance(item, dict) else item for item in shown]
    return [text if isinstance(text, str) else "" for text in texts]


def _calibrated_words(target: Target, rng: np.random.Generator) -> TokenSource:
    """Two probe requests give tokens per word and what the server's template adds; words of one token where known."""
    single = _single_words(target)
    words = single if len(set(single)) >= LEAST_WORDS else WORDS
    drawn = [words[i] for i in rng.integers(0, len(words), _POOL_WORDS)]
    few, many = _usage(target, drawn[:_FEW]), _usage(target, drawn[:_MANY])
    pool = Pool([word.encode() for word in drawn], sorted({word.encode() for word in drawn}), b" ")
    if few is None or many is None or many <= few:
        return TokenSource(pool, False, "prompts are text, one token a word assumed: the server does not count them")
    per_word = (many - few) / (_MANY - _FEW)
    extra = max(0, round(few - _FEW * per_word))
    if words is single and per_word == 1:
        said = f"prompts are text of words that {target.url}/tokenize makes one token each; the server adds {extra}"
        return TokenSource(pool, False, f"{said}, by its own count", extra)
    said = f"{per_word:.3f} tokens a word and {extra} added by the server, by its own count"
    return TokenSource(pool, False, f"prompts are text, calibrated: {said}", extra, per_word)


def _usage(target: Target, words: list[str]) -> int | None:
    text = " ".join(words)
    body: dict[str, Any] = {"model": target.model, "max_tokens": 1, "temperature": 0.0}
    body |= {"messages": [{"role": "user", "content": text}]} if target.endpoint == "chat" else {"prompt": text}
    status, answer = _post(target, PATHS[target.endpoint], body)
    if status != 200 or not isinstance(answer, dict):
        return None
    usage = answer.get("usage")
    return _count(usage.get("prompt_tokens") if isinstance(usage, dict) else answer.get("tokens_evaluated"))


def first_model(target: Target) -> str:
    """The first name that /v1/models lists; raises EngineError where the server does not answer."""
    status, answer = request(target, "GET", "/v1/models")
    listed = answer.get("data") if isinstance(answer, dict) and status == 200 else None
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        return str(listed[0].get("id", ""))
    return ""


def _post(target: Target, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    return request(target, "POST", path, json.dumps(body).encode())


def request(target: Target, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Status and decoded JSON (None where it is none) of one plain request; EngineError where nothing answers."""
    host, port, tls, base = target.address()
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    connection = (
        http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=tls_context(target))
        if tls
        else http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    )
    try:
        connection.request(method, base + path, body, headers)
        response = connection.getresponse()
        raw = response.read()
        status = response.status
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(
            f"no answer from {target.url}: {error or type(error).__name__}", hint="is the server up?"
        ) from None
    finally:
        connection.close()
    try:
        return status, json.loads(raw)
    except (ValueError, RecursionError):
        return status, None


def tls_context(target: Target) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not target.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
