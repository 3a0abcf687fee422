"""How probable Transformers finds each token of a text: one forward pass, in vLLM's ``prompt_logprobs`` form."""

from typing import Any

Row = dict[str, dict[str, float]] | None


def prompt_logprobs(model: Any, ids: list[int], top: int) -> list[Row]:
    """For each token the ``top`` likeliest in its place and itself, by id; None for the first, which follows nothing.

    Values are natural logarithms, computed in 32-bit floats from the model's own logits.
    """
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([ids], device=model.device)).logits[0].float()
        logs = torch.log_softmax(logits, dim=-1)
        best = logs.topk(min(top, logs.shape[-1]), dim=-1)
        own = logs[:-1].gather(1, torch.tensor(ids[1:], device=logs.device)[:, None])[:, 0].tolist()
    tokens, values = best.indices.tolist(), best.values.tolist()
    rows: list[Row] = [None]
    for place, token in enumerate(ids[1:]):
        row = {str(one): {"logprob": value} for one, value in zip(tokens[place], values[place], strict=True)}
        row[str(token)] = {"logprob": own[place]}
        rows.append(row)
    return rows
