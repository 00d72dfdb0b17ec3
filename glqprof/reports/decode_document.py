"""One decode run as a document."""

from __future__ import annotations

from collections.abc import Sequence

from glqprof.reports.document import Cell, Column, Document, Table, Text
from glqprof.traces.schema.decode import MODEL_SSM, DecodeResult

SHA_SHOWN = 12


def decode_table(result: DecodeResult) -> Table:
    """One row: the timed tokens, their spread, and what came before them."""
    columns = [
        Column("tok/s", "tok_s"),
        Column("ms/token", "ms_per_token", digits=3),
        Column("median", "token_ms_median", digits=3),
        Column("p90", "token_ms_p90", digits=3),
        Column("max", "token_ms_max", digits=3),
        Column("prompt ms", "prefill_ms", digits=1),
        Column("load s", "load_s", digits=1),
    ]
    spread = result.spread_ms
    row: Sequence[Cell] = [
        result.tok_s,
        result.ms_per_token,
        spread["median"],
        spread["p90"],
        spread["max"],
        result.prefill_ms,
        result.load_s,
    ]
    return Table("Decode", columns, [row])


def decode_csv_table(result: DecodeResult) -> Table:
    """One row with every field of the JSON object but the single steps."""
    fields = {key: value for key, value in result.to_json().items() if key not in ("schema", "token_ms", "warnings")}
    spread = fields.pop("token_ms_spread")
    fields |= {f"token_ms_{name}": value for name, value in spread.items()}
    return Table("decode", [Column(key, key) for key in fields], [list(fields.values())])


def decode_document(result: DecodeResult) -> Document:
    """What ran, how fast, which tokens."""
    where = result.gpu or "the CPU: exact implementations, no figure of a GPU"
    headline = [
        f"{result.workload}, {result.path}: {result.tok_s:.2f} tok/s, {result.ms_per_token:.3f} ms a token",
        f"batch 1, {result.layers} layers, prompt {result.prompt}, {result.warmup} + {result.tokens} tokens",
        *_how(result),
        f"on {where}",
    ]
    document = Document("Decode", [Text(headline, "headline"), decode_table(result)])
    lines = [f"token_sha {result.token_sha[:SHA_SHOWN]} (first of 64 digits; every token after the prompt)"]
    if result.peak_gpu_bytes is not None:
        lines.append(f"GPU memory at most {result.peak_gpu_bytes / 1e9:.2f} GB")
    versions = [f"torch {result.torch}", f"transformers {result.transformers}", f"glqprof {result.glqprof}"]
    if result.cuda:
        versions += [f"CUDA {result.cuda}", f"driver {result.driver or 'unknown'}"]
    if result.commit:
        versions.append(f"commit {result.commit[:12]}{' with changes' if result.dirty else ''}")
    document.parts.append(Text([*lines, ", ".join(versions)]))
    if result.warnings:
        document.parts.append(Text([f"warning: {warning}" for warning in result.warnings], "warning"))
    return document


def _how(result: DecodeResult) -> list[str]:
    """Which loop ran the tokens, in words."""
    owner = f"{result.loop}'" if result.loop.endswith("s") else f"{result.loop}'s"
    first = f"experts {result.variant}, {owner} loop, {'a CUDA graph a token' if result.graph else 'eager'}"
    parts = [f"{result.cache} cache", "the model's SSM step" if result.ssm == MODEL_SSM else f"SSM step {result.ssm}"]
    if result.sdpa != "any":
        parts.append(f"attention {result.sdpa}")
    if result.shared_stream:
        parts.append("shared expert on a stream of its own")
    if result.prompt_variant:
        parts.append(f"prompt read by {result.prompt_variant}")
    return [first, ", ".join(parts)]
