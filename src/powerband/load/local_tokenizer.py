"""Tokens by a tokenizer.json on this machine, for servers that do not tokenise or endpoints that take text only."""

from pathlib import Path
from typing import Any

import numpy as np

from powerband.load.prompts import Pool
from powerband.load.words import WORDS, english_like
from powerband.records.errors import MachineError, RequestError

LEAST_WORDS = 64  # of one token each: fewer make prompts too alike


class LocalTokenizer:
    """A Hugging Face tokenizer.json, or the folder that holds one; needs the ``tokenizers`` extra."""

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        hint = "give a tokenizer.json, or a model's folder that holds one"
        if not file.is_file():
            raise RequestError(f"no tokenizer at {file}", hint=hint)
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MachineError("--tokenizer needs a library", hint="pip install 'powerband[tokenizers]'") from None
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 the library raises bare Exception
            raise RequestError(f"{file} is no tokenizer: {str(error)[:200]}", hint=hint) from None

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def id_pool(self, words: int, rng: np.random.Generator) -> Pool | None:
        """A pool of token ids of English-like text; None for a vocabulary that makes it one id over and over."""
        ids = self.encode(english_like(words, rng))
        units = [b"%d" % token for token in ids]
        return Pool(units, sorted(set(units)), b",") if len(set(ids)) > 1 else None

    def word_pool(self, words: int, rng: np.random.Generator) -> Pool | None:
        """A pool of words that are one token each wherever they stand, so that n words are n tokens; None without.

        Checked on the pool as a whole: as many tokens as words.
        """
        whole = [word for word in WORDS if len(self.encode(word)) == 1 == len(self.encode(f"{word} {word}")) - 1]
        if len(whole) < LEAST_WORDS:
            return None
        drawn = [whole[i] for i in rng.integers(0, len(whole), words)]
        if len(self.encode(" ".join(drawn))) != words:
            return None
        units = [word.encode() for word in drawn]
        return Pool(units, sorted(set(units)), b" ")
