"""Greedy decoding of one sequence, timed token by token, and the result of a whole run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from glqprof import __version__, annotate
from glqprof.errors import InputError
from glqprof.traces.schema.decode import DecodeResult
from glqprof.workloads.nemotron_h.experts import Experts, compute, prepare, random_layers
from glqprof.workloads.nemotron_h.model import Built, build, check_memory, transformers_classes
from glqprof.workloads.nemotron_h.patch import moe_modules
from glqprof.workloads.nemotron_h.paths import How
from glqprof.workloads.nemotron_h.runs import prepare_loop, read_prompt, token_run
from glqprof.workloads.nemotron_h.sizes import Sizes, load_sizes
from glqprof.workloads.nemotron_h.variants import ExpertVariant, find_variant

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


def greedy(
    model: Any,
    prompt: Any,
    tokens: int,
    warmup: int = WARMUP,
    how: How | None = None,
    after_prompt: Callable[[], None] = lambda: None,
) -> Decoded:
    """Decode ``warmup`` and then ``tokens`` tokens after ``prompt`` ([1, length] ids on the model's device).

    Always the likeliest token, the lowest id where several are; no end-of-sequence. The timed tokens are the part that
    `annotate.profiled` marks, each a range ``decode_token_<i>``. Every token is read by the host, as whoever streams
    them must. ``how``: default transformers' eager loop; the prompt is the model's own forward in any case.
    ``after_prompt`` is called between the two.
    """
    with torch.inference_mode():
        prompted = read_prompt(model, prompt)
        after_prompt()
        ids = [prompted.first]
        steps_ns = []
        with token_run(model, prompted, how or How(), warmup + tokens) as run:
            ids += [run() for _ in range(warmup)]
            with annotate.profiled():
                for index in range(tokens):
                    began = time.perf_counter_ns()
                    with annotate.decode_token(index):
                        ids.append(run())
                    steps_ns.append((began, time.perf_counter_ns()))
            logits = run.step.logits if tokens + warmup else prompted.logits
            finite = bool(torch.isfinite(logits).all())
        return Decoded(ids, prompted.prefill_ms, steps_ns, finite)


@dataclass(frozen=True)
class Loaded:
    """A workload's model on its device, for one or several decodes. ``peak_bytes``: most in use while it was made."""

    workload: str
    variant: ExpertVariant
    device: str
    sizes: Sizes
    seed: int
    built: Built
    load_s: float
    peak_bytes: int
    transformers: str


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
    how: How | None = None,
    say: Say = lambda what: None,
) -> DecodeResult:
    """Make a bundled workload on ``device``, decode, and say how fast: one run, untraced unless a profiler is around.

    Raises InputError: unknown names, choices that exclude each other, sizes that do not fit, no GPU, no transformers.
    """
    (how or How()).settled(find_variant(variant, "--variant"), device)  # told before anything is made
    loaded = load(workload, variant, device, layers=layers, seed=seed, say=say)
    return decode_loaded(loaded, how or How(), prompt=prompt, tokens=tokens, warmup=warmup, say=say)


def load(
    workload: str,
    variant: str,
    device: str,
    *,
    layers: int | None = None,
    seed: int = 0,
    say: Say = lambda what: None,
) -> Loaded:
    """Make a bundled workload's model; kernels are built before the clock starts. InputError as `run_decode`."""
    sizes = load_sizes(workload).prefix(layers)
    chosen = find_variant(variant, "--variant")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda", "no CUDA GPU is visible here; use --device cpu with --workload tiny")
    version = transformers_classes().version  # its import takes seconds, and is not loading
    say(f"preparing the kernels of {variant}")
    prepare(chosen, device)
    say(f"making {len(sizes.layers)} layers of {workload}, experts {variant}")
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with _memory_told(f"{workload} {variant}"):
        began = time.perf_counter()
        built = build(sizes, chosen, seed, device)
        if device == "cuda":
            torch.cuda.synchronize()
        load_s = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return Loaded(workload, chosen, device, sizes, seed, built, load_s, peak, str(version))


def decode_loaded(
    loaded: Loaded, how: How, *, prompt: int, tokens: int, warmup: int = WARMUP, say: Say = lambda what: None
) -> DecodeResult:
    """Decode once with a loaded model, from its prompt on. Raises InputError as `run_decode`."""
    settled = how.settled(loaded.variant, loaded.device)
    name = settled.name(loaded.variant.name)
    on_gpu = loaded.device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    prepare_loop(settled, loaded.device)
    model, counters = loaded.built.model, loaded.built.counters
    before = counters.read()
    load_s, after_prompt = loaded.load_s, _nothing
    with _memory_told(f"{loaded.workload} {name}"), contextlib.ExitStack() as undo:
        if settled.prompt_variant not in (None, loaded.variant.name):
            say(f"making the experts {settled.prompt_variant}, which read the prompt")
            reader = find_variant(str(settled.prompt_variant), "--prompt-variant")
            prepare(reader, loaded.device)
            began = time.perf_counter()
            prompt_experts = PromptExperts(loaded, reader)
            undo.callback(prompt_experts.remove)
            after_prompt = prompt_experts.remove
            load_s += time.perf_counter() - began
        say(f"decoding {tokens} tokens after {prompt}: {name}")
        ids = random_prompt(loaded.sizes.vocab, prompt, loaded.seed, loaded.device)
        decoded = greedy(model, ids, tokens, warmup, settled, after_prompt)
    sha = annotate.sha_of(decoded.ids)
    annotate.report(token_sha=sha, batch=1, workload=loaded.workload, variant=name)
    infinite, bad_ids = (now - then for now, then in zip(counters.read(), before, strict=True))
    warnings = []
    if infinite:
        warnings.append(f"{infinite} expert activations became infinite in fp16: the tokens mean nothing")
    if bad_ids:
        warnings.append(f"{bad_ids} expert ids named no expert and were skipped")
    if not decoded.finite:
        warnings.append("the last logits hold inf or NaN: the tokens mean nothing")
    result = DecodeResult(
        workload=loaded.workload,
        variant=loaded.variant.name,
        device=loaded.device,
        layers=len(loaded.sizes.layers),
        prompt=prompt,
        warmup=warmup,
        tokens=tokens,
        seed=loaded.seed,
        steps_ns=tuple(decoded.steps_ns),
        prefill_ms=decoded.prefill_ms,
        load_s=load_s,
        token_sha=sha,
        glqprof=__version__,
        torch=str(torch.__version__),
        transformers=loaded.transformers,
        warnings=tuple(warnings),
        loop=settled.loop,
        ssm=str(settled.ssm),
        cache=str(settled.cache),
        graph=settled.graph,
        sdpa=settled.sdpa,
        shared_stream=settled.shared_stream,
        prompt_variant=settled.prompt_variant or "",
    )
    return replace(result, **_gpu(loaded.peak_bytes)) if on_gpu else result


class PromptExperts:
    """Other experts of the same bits in a loaded model, which read the prompt; `remove` puts the model's own back."""

    def __init__(self, loaded: Loaded, variant: ExpertVariant) -> None:
        """Make them from the same seed; InputError where they do not fit into memory beside the model's own."""
        check_memory(loaded.sizes, variant, loaded.device, experts_only=True)
        counters = loaded.built.counters
        layers = random_layers(loaded.sizes, variant.kind, loaded.seed, loaded.device)
        runs = compute(variant, layers, loaded.sizes.top_k, counters)
        self._replaced = [(moe, moe.experts) for moe in moe_modules(loaded.built.model)]
        for (moe, _), run in zip(self._replaced, runs, strict=True):
            moe.experts = Experts(run, variant.name)

    def remove(self) -> None:
        """Put the model's own experts back and let these go; a second call does nothing."""
        for moe, experts in self._replaced:
            moe.experts = experts
        self._replaced.clear()


def _nothing() -> None:
    return None


@contextlib.contextmanager
def _memory_told(subject: str) -> Iterator[None]:
    """InputError where the GPU has no more memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        why = str(error).partition(". ")[0]
        raise InputError(subject, f"{why}; use --layers, or a shorter --prompt") from None


def _gpu(peak_bytes: int) -> dict[str, Any]:
    from glqprof.bench.cuda import driver_version

    return {
        "gpu": str(torch.cuda.get_device_name()),
        "driver": driver_version(),
        "cuda": str(torch.version.cuda),
        "peak_gpu_bytes": max(peak_bytes, int(torch.cuda.max_memory_allocated())),
    }
