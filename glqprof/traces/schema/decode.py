"""The result of one decode run: ``glqprof.decode/1``."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

SCHEMA = "glqprof.decode/1"
MODEL_SSM = "model"
"""``ssm`` where the Mamba-2 layers' step is the model's own code."""


def path_name(
    variant: str,
    *,
    loop: str = "transformers",
    ssm: str = "",
    cache: str = "",
    graph: bool = False,
    sdpa: str = "any",
    shared_stream: bool = False,
) -> str:
    """``fused:glqprof:graph``: the expert variant, then each choice that is not its loop's default on a GPU.

    The bare variant is transformers' eager loop with its dynamic cache and the model's own SSM step.
    """
    own = loop != "transformers"
    parts = [variant]
    if own:
        parts.append(loop)
    if ssm and ssm != ("fused" if own else MODEL_SSM):
        parts.append(f"ssm={ssm}")
    if cache == "static" and not own and not graph:
        parts.append("static")
    if sdpa != "any":
        parts.append(f"sdpa={sdpa}")
    if shared_stream:
        parts.append("shared-stream")
    if graph:
        parts.append("graph")
    return ":".join(parts)


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of them lie, linear between the two nearest ranks (numpy's default)."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(frozen=True)
class DecodeResult:
    """One run of one variant at batch 1.

    ``steps_ns``: start and end of every timed token. ``prefill_ms``: prompt in, first token out. ``load_s``: weights
    made and laid out. ``peak_gpu_bytes``: most that torch had in use. ``token_sha``: `annotate.sha_of` of every id
    after the prompt: the first, ``warmup`` more, the ``tokens`` timed ones. ``gpu``, ``driver``, ``cuda``: "" on the
    CPU. ``commit``: of the checkout that it ran in, "" outside one; ``dirty``: with changes. ``loop`` to
    ``shared_stream``: how the tokens were run (`workloads.nemotron_h.paths.How`). ``prompt_variant``: the experts that
    read the prompt where they were not ``variant``, "" else.
    """

    workload: str
    variant: str
    device: str
    layers: int
    prompt: int
    warmup: int
    tokens: int
    seed: int
    steps_ns: tuple[tuple[int, int], ...]
    prefill_ms: float
    load_s: float
    token_sha: str
    glqprof: str
    torch: str
    transformers: str
    peak_gpu_bytes: int | None = None
    gpu: str = ""
    driver: str = ""
    cuda: str = ""
    commit: str = ""
    dirty: bool = False
    warnings: tuple[str, ...] = ()
    loop: str = "transformers"
    ssm: str = MODEL_SSM
    cache: str = "dynamic"
    graph: bool = False
    sdpa: str = "any"
    shared_stream: bool = False
    prompt_variant: str = ""

    @property
    def path(self) -> str:
        """Variant and loop as one name: `path_name`."""
        return path_name(
            self.variant,
            loop=self.loop,
            ssm=self.ssm,
            cache=self.cache,
            graph=self.graph,
            sdpa=self.sdpa,
            shared_stream=self.shared_stream,
        )

    @property
    def ms_per_token(self) -> float:
        """From the first timed step's start to the last one's end, over the tokens: as captures count it."""
        return (self.steps_ns[-1][1] - self.steps_ns[0][0]) / 1e6 / len(self.steps_ns)

    @property
    def tok_s(self) -> float:
        """Tokens a second over the same span."""
        return 1000 / self.ms_per_token

    @property
    def token_ms(self) -> list[float]:
        """Milliseconds of each timed step."""
        return [(end - start) / 1e6 for start, end in self.steps_ns]

    @property
    def spread_ms(self) -> dict[str, float]:
        """Median, 10th and 90th percentile, least and most of `token_ms`."""
        ms = self.token_ms
        return {
            "median": statistics.median(ms),
            "p10": percentile(ms, 0.1),
            "p90": percentile(ms, 0.9),
            "min": min(ms),
            "max": max(ms),
        }

    def to_json(self) -> dict[str, Any]:
        """The object that ``decode --format json`` prints."""
        return {
            "schema": SCHEMA,
            "workload": self.workload,
            "variant": self.variant,
            "path": self.path,
            "loop": self.loop,
            "ssm": self.ssm,
            "cache": self.cache,
            "graph": self.graph,
            "sdpa": self.sdpa,
            "shared_stream": self.shared_stream,
            "prompt_variant": self.prompt_variant,
            "device": self.device,
            "layers": self.layers,
            "batch": 1,
            "prompt": self.prompt,
            "warmup": self.warmup,
            "tokens": self.tokens,
            "seed": self.seed,
            "tok_s": round(self.tok_s, 6),
            "ms_per_token": round(self.ms_per_token, 6),
            "token_ms_spread": {name: round(ms, 6) for name, ms in self.spread_ms.items()},
            "token_ms": [round(ms, 6) for ms in self.token_ms],
            "prefill_ms": round(self.prefill_ms, 3),
            "load_s": round(self.load_s, 3),
            "peak_gpu_bytes": self.peak_gpu_bytes,
            "token_sha": self.token_sha,
            "gpu": self.gpu,
            "driver": self.driver,
            "cuda": self.cuda,
            "torch": self.torch,
            "transformers": self.transformers,
            "glqprof": self.glqprof,
            "commit": self.commit,
            "dirty": self.dirty,
            "warnings": list(self.warnings),
        }
