"""Traffic files and specs: what is read, what is scaled, and how a wrong file is refused."""

import gzip
import json
import os
from pathlib import Path

import pytest

from powerband.load.traffic import build_workload
from powerband.records.errors import RequestError
from powerband.records.workload import RequestSpec, Workload

AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:01.017335+00:00,2399,6\n"
)
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,s1,2.5,ChatGPT,472,18,490,Conversation log\n"
    "45.5,s2,9.1,GPT-4,1087,230,1317,API log\n"
)


def write(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text, newline="")
    return str(path)


def refusal(traffic: str, **options: float) -> RequestError:
    with pytest.raises(RequestError) as caught:
        build_workload(traffic, **options)  # type: ignore[arg-type]
    return caught.value


def lengths(workload: Workload) -> list[tuple[int, int]]:
    return [(r.input_tokens, r.output_tokens) for r in workload.requests]


def test_azure_2023_keeps_its_seven_digits(tmp_path: Path) -> None:
    workload = build_workload(write(tmp_path, "azure.csv", AZURE_2023))
    assert lengths(workload) == [(374, 44), (396, 109)]
    assert [r.offset_ns for r in workload.requests] == [0, 4_314_579_000]
    assert "Azure" in workload.source
    assert workload.scaling == ""


def test_azure_2024_has_a_utc_offset(tmp_path: Path) -> None:
    workload = build_workload(write(tmp_path, "azure.csv", AZURE_2024))
    assert [r.offset_ns for r in workload.requests] == [0, 1_007_405_000]


def test_burstgpt_reads_seconds(tmp_path: Path) -> None:
    workload = build_workload(write(tmp_path, "burst.csv", BURSTGPT))
    assert lengths(workload) == [(472, 18), (1087, 230)]
    assert workload.requests[1].offset_ns == 40_500_000_000


def test_mooncake_blocks_name_shared_prefixes(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 1000, "input_length": 1030, "output_length": 6, "hash_ids": [0, 1, 2]},
        {"timestamp": 3500, "input_length": 600, "output_length": 4, "hash_ids": [0, 7]},
    ]
    workload = build_workload(write(tmp_path, "m.jsonl", "\n".join(map(json.dumps, rows))))
    assert [r.block_ids for r in workload.requests] == [(0, 1, 2), (0, 7)]
    assert workload.block_tokens == 512
    assert workload.requests[1].offset_ns == 2_500_000_000


def test_own_jsonl_has_the_records_fields(tmp_path: Path) -> None:
    text = '{"offset_ns": 5, "input_tokens": 9, "output_tokens": 3, "prefix_id": 1, "prefix_tokens": 4}\n'
    text += '{"offset_ns": 8, "input_tokens": 2, "output_tokens": 1, "session": 7}\n'
    workload = build_workload(write(tmp_path, "own.jsonl", text))
    assert workload.requests == (
        RequestSpec(offset_ns=0, input_tokens=9, output_tokens=3, prefix_id=1, prefix_tokens=4),
        RequestSpec(offset_ns=3, input_tokens=2, output_tokens=1, session=7),
    )


@pytest.mark.parametrize("as_lines", [True, False])
def test_a_conversation_becomes_turns_that_share_their_history(tmp_path: Path, as_lines: bool) -> None:
    said = [("human", 40), ("gpt", 80), ("human", 8), ("gpt", 5)]
    talk = {"id": "a", "conversations": [{"from": who, "value": "x" * chars} for who, chars in said]}
    text = json.dumps(talk) + "\n" if as_lines else json.dumps([talk, talk])
    workload = build_workload(write(tmp_path, "talk.json", text), requests=2)
    # 40 characters: 10 tokens; then 10 + 20 + 2 = 32; the last answer's 5 characters are 2 tokens
    assert lengths(workload) == [(10, 20), (32, 2)]
    assert [r.session for r in workload.requests] == [0, 0]
    assert workload.requests[1].prefix_tokens == 32


def test_an_array_longer_than_one_read_is_streamed(tmp_path: Path) -> None:
    talk = {"conversations": [{"from": "user", "value": "q" * 99_000}, {"from": "assistant", "value": "a" * 400}]}
    path = write(tmp_path, "talk.json", json.dumps([talk] * 30))
    assert lengths(build_workload(path)) == [(24_750, 100)] * 30


def test_a_gzipped_trace_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv.gz"
    path.write_bytes(gzip.compress(AZURE_2023.encode()))
    assert lengths(build_workload(str(path))) == [(374, 44), (396, 109)]


def test_scaling_is_done_and_said(tmp_path: Path) -> None:
    workload = build_workload(write(tmp_path, "azure.csv", AZURE_2023), scale_lengths=0.1, scale_rate=2)
    assert lengths(workload) == [(37, 4), (40, 11)]
    assert workload.requests[1].offset_ns == 2_157_289_500
    assert workload.scaling == "arrival rate x2, lengths x0.1"


def test_scaled_blocks_keep_their_number(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1030, "output_length": 60, "hash_ids": [4, 5, 6]}
    workload = build_workload(write(tmp_path, "m.jsonl", json.dumps(row)), scale_lengths=0.5)
    assert (workload.block_tokens, workload.requests[0].input_tokens) == (256, 515)
    assert workload.requests[0].block_ids == (4, 5, 6)


def test_a_length_of_zero_is_raised_and_said(tmp_path: Path) -> None:
    workload = build_workload(write(tmp_path, "azure.csv", AZURE_2023.replace(",374,44", ",0,44")))
    assert lengths(workload)[0] == (1, 44)
    assert "1 lengths of 0 raised to 1" in workload.scaling


def test_rows_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    head, first, second, _ = AZURE_2023.split("\r\n")
    workload = build_workload(write(tmp_path, "azure.csv", "\n".join([head, second, first])))
    assert lengths(workload) == [(374, 44), (396, 109)]
    assert workload.requests[0].offset_ns == 0


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (AZURE_2023.split("\r\n", maxsplit=1)[0], "holds no request"),
        (AZURE_2023.replace("GeneratedTokens", "Generated"), "column 'GeneratedTokens' is missing"),
        (AZURE_2023.replace("396", "-396"), "line 3: ContextTokens is negative: -396"),
        (AZURE_2023.replace("396", "many"), "line 3: ContextTokens is 'many'"),
        (AZURE_2023.replace("396", "39.5"), "line 3: ContextTokens is '39.5'"),
        (AZURE_2023.replace("396,", ""), "line 3: has 2 fields where the header has 3"),
        (AZURE_2023.replace("2023-11-16 18:15:50.9951690", "noon"), "line 3: TIMESTAMP is 'noon'"),
        (BURSTGPT.replace("Request tokens", "Tokens"), "column 'Request tokens' is missing"),
        ("a,b\n1,2\n", "line 1: is no known header"),
        ('{"foo": 1}\n', "line 1: has none of the known fields (seen: foo)"),
        ('{"input_tokens": 5}\n', "line 1: Object missing required field `output_tokens`"),
        ('{"input_tokens": 5, "output_tokens": 1, "offset": 3}', "unknown field `offset`"),
        ('{"input_tokens": 5, "output_tokens": 1}\n{"input', "line 2: is not JSON"),
        ('{"input_tokens": 5, "output_tokens": -1}', "line 1: output_tokens is negative: -1"),
        ('{"input_length": 5, "output_length": 1, "hash_ids": ["a"]}', "hash_ids ['a'] is not a list of whole numbers"),
        ('[{"conversations": 3}]', "has no list 'conversations'"),
        ('[{"conversations": [', "is cut off"),
        ("[1]", "element 0 is no JSON object"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, seen: str) -> None:
    error = refusal(write(tmp_path, "trace.x", text))
    assert seen in error.message
    assert "trace.x" in error.message
    assert error.hint


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(AZURE_2023.encode() + b"\xff\xfe\x00")
    assert "not UTF-8" in refusal(str(path)).message


def test_a_broken_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(AZURE_2023.encode() + os.urandom(3000).hex().encode())[:-20])
    assert "cannot be read" in refusal(str(path)).message


def test_a_missing_file_names_what_is_accepted() -> None:
    error = refusal("no-such.csv")
    assert "no-such.csv" in error.message
    assert "concurrency=8" in error.hint


@pytest.mark.parametrize("options", [{"requests": 0}, {"scale_lengths": -1.0}, {"scale_rate": float("nan")}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    assert "must be above 0" in refusal("in=5,out=5,concurrency=1", **options).message


def test_only_the_rows_asked_for_are_read(tmp_path: Path) -> None:
    """A trace of any length: what comes after the last row wanted is not looked at."""
    path = write(tmp_path, "azure.csv", AZURE_2023 + "not a row\n")
    assert len(build_workload(path, requests=2).requests) == 2


def test_the_published_azure_trace_has_its_published_shape(field_dir: Path) -> None:
    """19,366 requests, median prompt 1,020 and median answer 129 tokens: Splitwise (ISCA'24), conversation trace."""
    workload = build_workload(str(field_dir / "traffic" / "AzureLLMInferenceTrace_conv.csv"))
    inputs = sorted(r.input_tokens for r in workload.requests)
    outputs = sorted(r.output_tokens for r in workload.requests)
    assert len(inputs) == 19_366
    assert (inputs[len(inputs) // 2], outputs[len(outputs) // 2]) == (1020, 129)


def test_the_published_mooncake_trace_has_its_published_shape(field_dir: Path) -> None:
    """3,993 requests, 15,325 tokens in and 149 out on average, by its README."""
    workload = build_workload(str(field_dir / "traffic" / "mooncake_synthetic_trace.jsonl"))
    count = len(workload.requests)
    assert count == 3_993
    assert (round(workload.input_tokens / count), round(workload.output_tokens / count)) == (15_325, 149)
