"""Write conversation_sample.csv: generated requests in the shape of the Azure LLM inference trace 2023, conversation.

Not the trace itself: lengths and arrivals are drawn from simple distributions whose figures were set to those of the
published trace (19,366 requests in 3,502 s; prompt mean 1,155, median 1,020, 10th and 90th percentile 207 and 2,735;
answer mean 211, median 129, 10th and 90th percentile 54 and 424; Patel et al., Splitwise, ISCA 2024).
"""

import csv
import datetime
import random
from pathlib import Path

ROWS, SEED = 2_000, 20231116
MEAN_GAP_S = 3501.7 / 19_365


def input_tokens(rng: random.Random) -> int:
    """Three populations: short questions, conversations with history, long documents."""
    kind = rng.random()
    if kind < 0.40:
        tokens = rng.lognormvariate(5.75, 0.55)
    elif kind < 0.83:
        tokens = rng.lognormvariate(7.0, 0.28)
    else:
        tokens = rng.lognormvariate(7.95, 0.22)
    return min(max(round(tokens), 8), 7_500)


def output_tokens(rng: random.Random) -> int:
    """Two populations: short answers, and long ones near 430 tokens."""
    tokens = rng.lognormvariate(4.6, 0.55) if rng.random() < 0.71 else rng.gauss(430, 55)
    return min(max(round(tokens), 8), 1_000)


def main() -> None:
    rng = random.Random(SEED)
    when = datetime.datetime(2023, 11, 16, 18, 15, 46)  # noqa: DTZ001  the trace's own format has no zone
    with (Path(__file__).parent / "conversation_sample.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        for _ in range(ROWS):
            writer.writerow([f"{when:%Y-%m-%d %H:%M:%S.%f}0", input_tokens(rng), output_tokens(rng)])
            when += datetime.timedelta(seconds=rng.expovariate(1 / MEAN_GAP_S))


if __name__ == "__main__":
    main()
