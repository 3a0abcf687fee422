"""What the rules say on the stated facts of public incidents whose cause was confirmed, beside that cause.

    python bench/diagnosis_field.py ../shared/field/diagnosis/given.jsonl --out docs/reference/diagnosis-accuracy.md

The facts below were read from symptom, environment and figures of each row, never from its cause or fix, except that
an A/B test is a fact where its two sides are the stated symptom; where a row says slower or no better and not by how
much, 0.9 and 1.0 stand for it. ``cause`` is the confirmed one in the vocabulary of powerband; None: it has none (a
fault, memory that was never counted), and undecided is all that can be said.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from powerband.locate.stated import diagnose_facts
from powerband.records.facts import Facts, Pair
from powerband.records.finding import Cause


@dataclass(frozen=True)
class Case:
    """``refuted``: the confirmed finding is that this cause was blamed wrongly."""

    cause: Cause | None
    facts: Facts
    refuted: bool = False


CASES: dict[str, Case] = {
    "D002": Case("communication_bound", Facts(cards=4, one_card=Pair(before=1.0, after=1.0))),
    "D008": Case(None, Facts(cards=2)),
    "D010": Case("kernel_choice", Facts(kernel=Pair(before=23, after=123), input_tokens=8192)),
    "D011": Case("kernel_choice", Facts(log="model can run with awq_marlin but quantization=awq was forced; "
                                            "speed can be slower than non-quantised")),
    "D012": Case("quantisation_overhead", Facts(weight_bits=4, quantised_first_token=Pair(before=1.0, after=1 / 2))),
    "D013": Case("quantisation_overhead", Facts(weight_bits=4, input_tokens=1024, output_tokens=64)),
    "D016": Case("quantisation_overhead", Facts(quantised=Pair(before=3922.41, after=3334.74), sequences=1000)),
    "D017": Case("quantisation_overhead", Facts(quantised=Pair(before=5.0, after=1.0))),
    "D019": Case("launch_bound", Facts(quantised=Pair(before=1.0, after=0.9), sequences=1)),
    "D024": Case("scheduler_bound", Facts(gpu_busy_ratio=0.6, sequences=64)),
    "D026": Case("tokenizer_bound", Facts(busiest_process_cores=1.0, decodes=False, input_tokens=3000)),
    "D034": Case("client_limited", Facts(client_concurrency=1, sequential=Pair(before=1770, after=1804))),
    "D036": Case("compute_bound", Facts(first_token_grows_with_tokens=True)),
    "D039": Case("head_of_line_blocking", Facts(smaller_prefill_budget=Pair(before=1.0, after=1.37))),
    "D040": Case("queueing", Facts(first_tokens_come_in_steps=True)),
    "D045": Case(None, Facts()),
    "D046": Case(None, Facts()),
    "D048": Case(None, Facts(cards=2, longest_prompt_tokens=900)),
    "D054": Case(None, Facts(speculation=Pair(before=0.9, after=0.9))),
    "D055": Case("compute_bound", Facts(cards=4, speculation=Pair(before=1.147, after=1.0))),
    "D057": Case("kernel_choice", Facts(kernel=Pair(before=1 / 23.52, after=1 / 23.49),
                                        log="Using default MoE config. Performance might be sub-optimal!"),
                 refuted=True),
    "D058": Case("kernel_choice", Facts(kernel=Pair(before=1 / 0.447, after=1 / 0.279))),
    "D061": Case("launch_bound", Facts(cards=4, graphs=Pair(before=26.7, after=32.5), kv_tokens=3_895_606)),
    "D062": Case("launch_bound", Facts(launch_share=0.832, launches_per_step=430, launch_s=5e-6, sequences=1)),
    "D064": Case("prefix_cache_miss", Facts(prefix_hit_ratio=0.0, shared_prefix_tokens=2048)),
    "D066": Case("prefix_cache_miss", Facts(prefix_hit_ratio=0.0, shared_prefix_tokens=28_000)),
    "D067": Case("communication_bound", Facts(cards=2, one_card=Pair(before=40, after=27))),
    "D069": Case("kv_pressure", Facts(kv_tokens=1741, longest_prompt_tokens=3034)),
}  # fmt: skip

HEAD = """# What the rules say of public incidents

Incidents from public issue trackers whose cause was confirmed there, each reduced to its stated facts by hand (see
`bench/diagnosis_field.py`, which makes this page: facts come from symptom, environment and figures, not from cause or
fix). `locate` gets these facts alone: no run, no trace. Some confirmed causes are no cause of a slow service in this
tool's vocabulary (a hang at the start, memory that was not counted, a draft model that does not fit): there, undecided
is all that can be said, and it counts as undecided. The same hand that wrote the rules reduced the rows, so this table
shows what the rules cover; how often they are right on engines is measured [elsewhere](locate-accuracy.md).

"""


def judge(case: Case) -> tuple[str, str, str]:
    """What was said, why, and: agrees, differs or undecided."""
    found = diagnose_facts(case.facts)
    if case.refuted:
        cleared = any(finding.cause == case.cause and finding.status == "refuted" for finding in found.findings)
        return f"not {case.cause}" if cleared else found.verdict, found.reason, "agrees" if cleared else "differs"
    if found.verdict == "undecided":
        return "undecided", found.reason, "undecided"
    return found.verdict, found.reason, "agrees" if found.verdict == case.cause else "differs"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.rows.read_text().splitlines() if line.strip()]
    certain = [row for row in rows if not row.get("uncertain")]
    missing = [row["id"] for row in certain if row["id"] not in CASES]
    if missing:
        print(f"no facts are written down for {', '.join(missing)}", file=sys.stderr)
        return 1
    judged = [(row, CASES[row["id"]], *judge(CASES[row["id"]])) for row in certain]
    page = HEAD + table(judged)
    print(page)
    if args.out:
        args.out.write_text(page)
    return 0


def table(judged: list[tuple[dict[str, str], Case, str, str, str]]) -> str:
    agrees = sum(mark == "agrees" for *_, mark in judged)
    decided = sum(mark != "undecided" for *_, mark in judged)
    named = [row for row in judged if row[1].cause is not None]
    lines = [
        f"**{agrees} of {decided} decided rows agree ({agrees / decided:.0%}); {len(judged) - decided} of "
        f"{len(judged)} undecided.** Of the {len(named)} rows whose cause has a name here, {agrees} agree "
        f"({agrees / len(named):.0%}); of all {len(judged)}, {agrees / len(judged):.0%}.",
        "",
        "| row | engine | confirmed cause | said | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row, case, said, _, mark in judged:
        name = "none of ours" if case.cause is None else f"not {case.cause}" if case.refuted else case.cause
        lines.append(f"| [{row['source']}]({link(row['source'])}) | {row['engine']} | {name} | {said} | {mark} |")
    lines += ["", "Rows that differ or stay undecided:", ""]
    lines += [f"* {row['source']}: said {said}; {reason}." for row, _, said, reason, mark in judged if mark != "agrees"]
    return "\n".join([*lines, ""])


def link(source: str) -> str:
    repository, _, number = source.partition("#")
    place = "https://github.com/" + repository.split()[0]
    return f"{place}/issues/{number}" if number else place


if __name__ == "__main__":
    sys.exit(main())
