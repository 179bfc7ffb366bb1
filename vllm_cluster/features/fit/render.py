"""Whether a model fits, as a table with reasons for people and as a document for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vllm_cluster.kernel.terminal.output import BOLD, out, styles, with_ends
from vllm_cluster.kernel.terminal.printable import plain
from vllm_cluster.kernel.text import count, plural
from vllm_cluster.serving.fit.layouts import UTILISATION, FitReport, Layout, min_gpus
from vllm_cluster.serving.fit.weights import rule_of_thumb

GIB = 1 << 30


def verdict_document(found: FitReport) -> dict[str, Any]:
    """The verdict as JSON would have it; sizes in bytes, null where they are not known."""
    model, shape, workload = found.model, found.model.shape, found.workload
    context = model.context(workload)
    return {
        "v": 1,
        "model": model.name,
        "architecture": shape.architecture,
        "supports_pp": model.pipelines,
        "layers": len(shape.layers),
        "weights": {
            "stored_bytes": dict(model.weights.stored),
            "loaded_bytes": model.weights.loaded,
            "unused_bytes": model.weights.unused,
            "estimated": model.weights.estimated,
        },
        "context": context,
        "concurrency": workload.concurrency,
        "kv_cache": {
            "dtype": workload.kv_dtype,
            "bytes_per_token": _per_token(found),
            "bytes_per_request": model.request(context, workload.kv_bytes),
        },
        "rule_of_thumb_bytes": rule_of_thumb(model.weights.loaded),
        "gpus": asdict(found.gpus),
        "min_gpus": min_gpus(model, found.gpus.memory_bytes, workload),
        "layouts": [asdict(layout) for layout in found.layouts],
        "fits": found.recommended is not None,
        "recommended": asdict(found.recommended) if found.recommended else None,
        "suggestions": list(found.suggestions),
        "notes": list(shape.notes),
    }


def _per_token(found: FitReport) -> int:
    """What one more token takes, while no window is full."""
    model, kv_bytes = found.model, found.workload.kv_bytes
    return (model.request(32, kv_bytes) - model.request(16, kv_bytes)) // 16


def show_verdict(found: FitReport, *, color: str) -> None:
    """Write the verdict on standard output."""
    bold, end = styles(color, BOLD)
    lines = [f"{name:<14} {value}" for name, value in _sizes(found)]
    rows = [_TITLES, *map(_cells, found.layouts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines.append("")
    for name, *cells, state in rows:
        middle = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:-1], strict=True))
        lines.append(f"{name:<{widths[0]}}  {middle}  {state}".rstrip())
    reasons: dict[str, list[str]] = {}
    for layout in found.layouts:
        reasons.setdefault("; ".join(filter(None, (layout.reason, *layout.notes))), []).append(_name(layout))
    lines += ["", *(f"{', '.join(names)}: {reason}" for reason, names in reasons.items()), ""]
    out(*with_ends(map(plain, lines)), end="")
    for line in _conclusion(found):
        out(bold, plain(line), end)


_TITLES = ["layout", "weights", "computing", "for KV", "context", "at once", "tokens", ""]


def _sizes(found: FitReport) -> list[tuple[str, str]]:
    model, shape, workload = found.model, found.model.shape, found.workload
    context, weights = model.context(workload), model.weights
    stored = ", ".join(f"{dtype} {size / 1e9:.1f} GB" for dtype, size in sorted(weights.stored.items()))
    rows = [("model", model.name)]
    kv_heads = max(layer.heads for layer in shape.layers)
    text = f"{shape.architecture}: {len(shape.layers)} layers, {shape.heads} heads, {kv_heads} for KV"
    rows.append(("", f"{text}, context {shape.context}"))
    text = f"{weights.loaded / 1e9:.1f} GB ({stored})"
    text += f"; {weights.unused / 1e9:.1f} GB more are not loaded" if weights.unused else ""
    text += "; by the config or the index, as no headers of weights could be read" if weights.estimated else ""
    rows.append(("weights", text))
    request = model.request(context, workload.kv_bytes)
    text = f"{_per_token(found) / 1024:.1f} KiB a token ({workload.kv_dtype})"
    rows.append(("KV cache", f"{text}; {context} tokens: {request / GIB:.2f} GiB"))
    text = f"{rule_of_thumb(weights.loaded) / 1e9:.0f} GB by P·4/(32/Q)·1.2 (ignores context length)"
    rows.append(("rule of thumb", text))
    least = min_gpus(model, found.gpus.memory_bytes, workload)
    rows.append(("at least", f"{least} such {plural(least, 'GPU')}, by the plain sum of weights and one such request"))
    nodes = " + ".join(map(str, found.gpus.nodes)) if len(set(found.gpus.nodes)) > 1 else ""
    nodes = nodes or f"{len(found.gpus.nodes)} × {found.gpus.nodes[0]}"
    text = f"{nodes} of {found.gpus.memory_bytes / GIB:.1f} GiB, of which vLLM takes {UTILISATION:.0%}"
    rows.append(("GPUs", text))
    if found.model.pipelines is None and any(layout.pp > 1 for layout in found.layouts):
        unknown = "pipeline parallelism support unknown (run with an inventory to ask the image's vLLM)"
        rows.append(("note", unknown))
    return rows + [("note", note) for note in shape.notes]


def _name(layout: Layout) -> str:
    dealt = f" DP={layout.dp}" if layout.dp > 1 else ""
    return f"TP={layout.tp} PP={layout.pp}{dealt}{' EP' if layout.ep else ''}"


def _cells(layout: Layout) -> list[str]:
    if layout.problem:
        return [_name(layout), *[""] * 6, f"no: {layout.problem}"]
    sizes = [f"{size / GIB:.1f} GiB" for size in (layout.weights_bytes, layout.activation_bytes, layout.kv_cache_bytes)]
    many = (layout.max_context, layout.requests, layout.kv_cache_tokens)
    state = "fits" if layout.fits else "shorter context" if layout.max_context else "no"
    return [_name(layout), *sizes, *map(str, many), state]


def _conclusion(found: FitReport) -> list[str]:
    taken, workload = found.recommended, found.workload
    if taken and taken.fits:
        what = f"{count(taken.requests or 0, 'request')} of {found.model.context(workload)} tokens at once"
        return [f"It fits at {_name(taken)}, with room for {what}."]
    if taken:
        flag = f"-- --max-model-len={taken.max_context}"
        return [f"It fits at {_name(taken)} with a context of {taken.max_context} tokens at most: {flag}"]
    return [
        "Does not fit. Closest configurations that do:",
        *(f"  {change}" for change in found.suggestions or ("none found",)),
    ]
