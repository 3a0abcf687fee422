"""Model shapes with their parts, from dimensions alone."""

from powerband.records.model import LayerGroup, ModelSpec, WeightPart


def llama(
    *, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int, tied: bool, **more: object
) -> ModelSpec:
    """A Llama shape with its parts, from the dimensions alone."""
    head = hidden // heads
    parts = [WeightPart(role="embedding", layer=-1, parameters=vocab * hidden, bytes=2 * vocab * hidden, dtype="bf16",
                        split="tensor", rows=vocab)]  # fmt: skip
    if not tied:
        parts.append(WeightPart(role="head", layer=-1, parameters=vocab * hidden, bytes=2 * vocab * hidden,
                                dtype="bf16", split="tensor", rows=vocab))  # fmt: skip
    for layer in range(layers):
        for role, split, count, rows in (
            ("attention", "tensor", 2 * hidden * hidden, 2 * hidden),
            ("attention", "kv_heads", 2 * hidden * kv_heads * head, 2 * kv_heads * head),
            ("mlp", "tensor", 3 * hidden * intermediate, 2 * intermediate + hidden),
        ):
            parts.append(WeightPart(role=role, layer=layer, parameters=count, bytes=2 * count, dtype="bf16",  # type: ignore[arg-type]
                                    split=split, quantisable=True, rows=rows))  # type: ignore[arg-type]  # fmt: skip
        parts.append(WeightPart(role="norm", layer=layer, parameters=2 * hidden, bytes=4 * hidden, dtype="bf16",
                                split="replicated"))  # fmt: skip
    parts.append(WeightPart(role="norm", layer=-1, parameters=hidden, bytes=2 * hidden, dtype="bf16",
                            split="replicated"))  # fmt: skip
    total = sum(part.parameters for part in parts)
    fields: dict[str, object] = {
        "name": "llama", "architecture": "LlamaForCausalLM",
        "layers": (LayerGroup(count=layers, kind="attention", kv_heads=kv_heads, head_dim=head),),
        "hidden": hidden, "heads": heads, "head_dim": head, "vocab": vocab, "intermediate": intermediate,
        "parameters": total, "active_parameters": total, "weight_bytes": 2 * total, "weight_dtype": "bf16",
        "basis": "computed", "context_tokens": 8192, "parts": tuple(parts), "tied": tied,
        "layer_order": (0,) * layers, "rope_dim": head,
    }  # fmt: skip
    return ModelSpec(**{**fields, **more})  # type: ignore[arg-type]


def llama_8b() -> ModelSpec:
    return llama(layers=32, hidden=4096, heads=32, kv_heads=8, intermediate=14336, vocab=128256, tied=False)


def smollm() -> ModelSpec:
    return llama(layers=30, hidden=576, heads=9, kv_heads=3, intermediate=1536, vocab=49152, tied=True)
