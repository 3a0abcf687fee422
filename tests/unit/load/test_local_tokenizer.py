"""Prompts by a tokenizer on this machine: counted by the tokenizer itself, refused in words where it will not do."""

import json
from pathlib import Path

import numpy as np
import pytest

from powerband.load.body import request_builder
from powerband.load.local_tokenizer import LocalTokenizer
from powerband.load.process import request_payloads
from powerband.load.prompts import Prompts
from powerband.load.target import Target
from powerband.load.tokens import TokenSource
from powerband.load.words import WORDS
from powerband.records.errors import RequestError
from powerband.records.workload import RequestSpec, Workload

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE, as GPT-2, Llama 3 and Qwen have, trained here on the words; rare ones stay in pieces."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=700, show_progress=False)
    made.train_from_iterator([" ".join(WORDS[:200]), " ".join(sorted(WORDS[:150])), *WORDS[:150]] * 20, trainer)
    folder = tmp_path_factory.mktemp("bpe")
    made.save(str(folder / "tokenizer.json"))
    return folder


LENGTHS = (1, 2, 7, 64, 500, 9_000)


def texts(tokenizer: LocalTokenizer, *, as_ids: bool) -> list[bytes]:
    rng = np.random.default_rng(1)
    pool = tokenizer.id_pool(8_000, rng) if as_ids else tokenizer.word_pool(8_000, rng)
    assert pool is not None
    requests = tuple(RequestSpec(offset_ns=0, input_tokens=n, output_tokens=1) for n in LENGTHS)
    made = Prompts(pool, Workload(requests=requests, source="test"), 12345)
    return [made.of(index) for index in range(len(LENGTHS))]


def test_text_has_the_count_asked_by_the_tokenizer_itself(bpe: Path) -> None:
    raw = tokenizers.Tokenizer.from_file(str(bpe / "tokenizer.json"))
    made = texts(LocalTokenizer(bpe), as_ids=False)
    assert [len(raw.encode(text.decode()).ids) for text in made] == list(LENGTHS)


def test_ids_are_of_the_vocabulary_and_as_many_as_asked(bpe: Path) -> None:
    raw = tokenizers.Tokenizer.from_file(str(bpe / "tokenizer.json"))
    for text, wanted in zip(texts(LocalTokenizer(bpe / "tokenizer.json"), as_ids=True), LENGTHS, strict=True):
        ids = [int(part) for part in text.split(b",")]
        assert len(ids) == wanted
        assert max(ids) < raw.get_vocab_size()


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no tokenizer at"):
        LocalTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"not": "one"}))
    with pytest.raises(RequestError, match="is no tokenizer"):
        LocalTokenizer(tmp_path)


def test_a_vocabulary_of_letters_has_no_words(tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={letter: n for n, letter in enumerate("abc ")}, merges=[]))
    made.save(str(tmp_path / "tokenizer.json"))
    assert LocalTokenizer(tmp_path).word_pool(100, np.random.default_rng(1)) is None


def test_a_chat_prompt_leaves_room_for_what_the_template_adds(bpe: Path) -> None:
    pool = LocalTokenizer(bpe).word_pool(8_000, np.random.default_rng(1))
    assert pool is not None
    target = Target("http://h:1", "m", "chat", tokenizer=str(bpe))
    workload = Workload(requests=(RequestSpec(offset_ns=0, input_tokens=50, output_tokens=3),), source="test")
    sent = request_payloads(target, workload, TokenSource(pool, False, "", extra_tokens=9), 7)(0)
    content = json.loads(sent.partition(b"\r\n\r\n")[2])["messages"][0]["content"]
    raw = tokenizers.Tokenizer.from_file(str(bpe / "tokenizer.json"))
    assert len(raw.encode(content).ids) == 41
    assert request_builder(target, False)(b"x", 3).startswith(b"POST /v1/chat/completions ")
