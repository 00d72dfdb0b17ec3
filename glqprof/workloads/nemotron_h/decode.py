"""Greedy decoding of one sequence, timed token by token, and the result of a whole run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from glqprof import __version__, annotate
from glqprof.errors import InputError
from glqprof.traces.schema.decode import DecodeResult
from glqprof.workloads.nemotron_h.experts import prepare
from glqprof.workloads.nemotron_h.model import LETTERS, build, transformers_classes
from glqprof.workloads.nemotron_h.sizes import load_sizes
from glqprof.workloads.nemotron_h.variants import find_variant

WARMUP = 3
"""Tokens decoded before the timed ones, unless told otherwise."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Decoded:
    """``ids``: every token after the prompt: the prompt's own next token, warm-up, timed ones.

    ``prefill_ms``: prompt in, first token on the host. ``steps_ns``: start and end of each timed step; a step ends when
    its token is on the host. ``finite``: whether the last logits are all numbers.
    """

    ids: list[int]
    prefill_ms: float
    steps_ns: list[tuple[int, int]]
    finite: bool


def greedy(model: Any, prompt: Any, tokens: int, warmup: int = WARMUP) -> Decoded:
    """Decode ``warmup`` and then ``tokens`` tokens after ``prompt`` ([1, length] ids on the model's device).

    Always the likeliest token, the lowest id where several are; no end-of-sequence. The timed tokens are the part that
    `annotate.profiled` marks, each a range ``decode_token_<i>``. Every token is read by the host, as whoever streams
    them must.
    """
    alone = _without_attention(model)
    with torch.inference_mode():
        start = time.perf_counter_ns()
        out = model(input_ids=prompt, use_cache=True, logits_to_keep=1, **alone)
        # transformers 5.24 calls past_key_values cache, and warns of the old name
        name = "cache" if "cache" in out else "past_key_values"
        cache = out[name]
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        ids = [int(token)]
        prefill_ms = (time.perf_counter_ns() - start) / 1e6

        def step(token: Any) -> tuple[Any, Any]:
            out = model(input_ids=token, use_cache=True, **{name: cache}, **alone)
            logits = out.logits[:, -1]
            token = logits.argmax(-1, keepdim=True)
            ids.append(int(token))
            return token, logits

        for _ in range(warmup):
            token, _ = step(token)
        steps_ns = []
        logits = out.logits
        with annotate.profiled():
            for index in range(tokens):
                began = time.perf_counter_ns()
                with annotate.decode_token(index):
                    token, logits = step(token)
                steps_ns.append((began, time.perf_counter_ns()))
        return Decoded(ids, prefill_ms, steps_ns, bool(torch.isfinite(logits).all()))


def _without_attention(model: Any) -> dict[str, Any]:
    """What a model without any attention layer must be told: its cache cannot say how many tokens it holds.

    Nothing else reads masks or positions: nemotron_h has no rotary embedding.
    """
    if any(LETTERS[block.block_type] == "*" for block in model.model.layers):
        return {}
    classes = transformers_classes()
    if "create_masks_for_generate" not in vars(classes.model):  # takes no masks, and asks the cache in any case
        problem = f"transformers {classes.version} cannot decode without an attention layer; give more layers, or 5.17"
        raise InputError("--layers", problem)
    masks = {"full_attention": None, "linear_attention": None}
    return {"attention_mask": masks, "position_ids": torch.zeros(1, 1, dtype=torch.int64, device=model.device)}


def random_prompt(vocab: int, length: int, seed: int, device: Any) -> Any:
    """[1, length] token ids, uniform; drawn on the CPU, so the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (1, length), generator=generator).to(device)


def run_decode(
    workload: str,
    variant: str,
    device: str,
    *,
    prompt: int,
    tokens: int,
    warmup: int = WARMUP,
    layers: int | None = None,
    seed: int = 0,
    say: Say = lambda what: None,
) -> DecodeResult:
    """Make a bundled workload on ``device``, decode, and say how fast: one run, untraced unless a profiler is around.

    Raises InputError: unknown names, sizes that do not fit, no GPU, no transformers.
    """
    sizes = load_sizes(workload).prefix(layers)
    chosen = find_variant(variant, "--variant")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda", "no CUDA GPU is visible here; use --device cpu with --workload tiny")
    version = transformers_classes().version  # its import takes seconds, and is not loading
    say(f"preparing the kernels of {variant}")
    prepare(chosen, device)
    say(f"making {len(sizes.layers)} layers of {workload}, experts {variant}")
    try:
        began = time.perf_counter()
        built = build(sizes, chosen, seed, device)
        if device == "cuda":
            torch.cuda.synchronize()
        load_s = time.perf_counter() - began
        say(f"decoding {tokens} tokens after {prompt}")
        ids = random_prompt(sizes.vocab, prompt, seed, device)
        decoded = greedy(built.model, ids, tokens, warmup)
    except torch.OutOfMemoryError as error:
        why = str(error).partition(". ")[0]
        raise InputError(f"{workload} {variant}", f"{why}; use --layers, or a shorter --prompt") from None
    infinite, bad_ids = built.counters.read()
    sha = annotate.sha_of(decoded.ids)
    annotate.report(token_sha=sha, batch=1, workload=workload, variant=variant)
    warnings = []
    if infinite:
        warnings.append(f"{infinite} expert activations became infinite in fp16: the tokens mean nothing")
    if bad_ids:
        warnings.append(f"{bad_ids} expert ids named no expert and were skipped")
    if not decoded.finite:
        warnings.append("the last logits hold inf or NaN: the tokens mean nothing")
    result = DecodeResult(
        workload=workload,
        variant=variant,
        device=device,
        layers=len(sizes.layers),
        prompt=prompt,
        warmup=warmup,
        tokens=tokens,
        seed=seed,
        steps_ns=tuple(decoded.steps_ns),
        prefill_ms=decoded.prefill_ms,
        load_s=load_s,
        token_sha=sha,
        glqprof=__version__,
        torch=str(torch.__version__),
        transformers=str(version),
        warnings=tuple(warnings),
    )
    return replace(result, **_gpu()) if device == "cuda" else result


def _gpu() -> dict[str, Any]:
    from glqprof.bench.cuda import driver_version

    return {
        "gpu": str(torch.cuda.get_device_name()),
        "driver": driver_version(),
        "cuda": str(torch.version.cuda),
        "peak_gpu_bytes": int(torch.cuda.max_memory_allocated()),
    }
