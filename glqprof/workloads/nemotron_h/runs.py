"""From a prompt to a callable that decodes one token a call, as `paths.How` says: eager or a graph, either loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from glqprof.traces.schema.decode import MODEL_SSM
from glqprof.workloads.nemotron_h.paths import GLQPROF, How
from glqprof.workloads.nemotron_h.ssm_patch import mamba_modules, patch_mixers, prepare_ssm
from glqprof.workloads.nemotron_h.static_cache import StaticState, capacity_for
from glqprof.workloads.nemotron_h.steps import (
    EagerRun,
    Run,
    Step,
    TransformersStep,
    cache_name,
    sdpa_backend,
    without_attention,
)


@dataclass(frozen=True)
class Prompted:
    """What reading a prompt leaves. ``cache``: transformers' dynamic one. ``length``: its tokens. ``first``: the next
    token. ``logits``: [1, vocab]. ``prefill_ms``: prompt in, first token on the host."""

    cache: Any
    length: int
    first: int
    logits: Any
    prefill_ms: float


def read_prompt(model: Any, prompt: Any) -> Prompted:
    """The model's own forward over ``prompt``, [1, length] ids on its device."""
    start = time.perf_counter_ns()
    out = model(input_ids=prompt, use_cache=True, logits_to_keep=1, **without_attention(model))
    logits = out.logits[:, -1]
    first = int(logits.argmax(-1))
    return Prompted(out[cache_name()], prompt.shape[1], first, logits, (time.perf_counter_ns() - start) / 1e6)


def prepare_loop(how: How, device: str) -> None:
    """Build or load the CUDA extensions that the loop needs; InputError where they cannot be built."""
    if how.ssm not in (None, MODEL_SSM):
        prepare_ssm(str(how.ssm), device, f"--ssm {how.ssm}")
    if how.loop == GLQPROF:
        from glqprof.workloads.nemotron_h.loop import prepare_step

        prepare_step(device)


@contextlib.contextmanager
def token_run(model: Any, prompted: Prompted, how: How, tokens: int) -> Iterator[Run]:
    """Yield what decodes the ``tokens`` tokens after a prompt, one a call; the model is as it was afterwards.

    InputError: a loop that cannot run this model, a step that cannot be captured, an attention backend that cannot
    compute it.
    """
    with contextlib.ExitStack() as undo:
        token = torch.tensor([[prompted.first]], dtype=torch.int64, device=model.device)
        state = None
        if how.cache == "static" or how.graph or how.loop == GLQPROF:
            state = StaticState(model, prompted.cache, capacity_for(prompted.length + tokens), prompted.length)
        if how.loop == GLQPROF:
            from glqprof.workloads.nemotron_h.loop import GlqprofStep

            assert state is not None
            step: Step = GlqprofStep(model, token, state, ssm=how.ssm, shared_stream=how.shared_stream)
        else:
            if how.ssm not in (None, MODEL_SSM):
                undo.callback(patch_mixers(mamba_modules(model), str(how.ssm), f"--ssm {how.ssm}"))
            undo.enter_context(sdpa_backend(how.sdpa))
            step = TransformersStep(model, token, prompted.cache, state)
        if how.graph:
            from glqprof.workloads.nemotron_h.graph import CapturedRun

            yield CapturedRun(step)
        else:
            yield EagerRun(step)
