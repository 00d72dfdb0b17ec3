"""Greedy decoding of any nemotron_h model that a user loads, each token one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.patch import moe_modules
from glqprof.workloads.nemotron_h.paths import How
from glqprof.workloads.nemotron_h.variants import BF16, VARIANTS, ExpertVariant

SUBJECT = "graph_decode"


def graph_decode(
    model: Any,
    input_ids: Any,
    max_new_tokens: int,
    *,
    loop: str = "transformers",
    ssm: str | None = None,
    graph: bool = True,
    shared_stream: bool = False,
    eos_token_id: int | Sequence[int] | None = None,
    on_token: Callable[[int], None] | None = None,
) -> Any:
    """``input_ids`` and ``max_new_tokens`` greedy tokens after them, [1, length + new] int64 on the model's device.

    ``model``: a ``NemotronHForCausalLM`` of transformers in eval mode, patched or not, on one device. ``input_ids``:
    [1, length] int64, without padding. The prompt is read by the model's own forward; its state is copied into static
    buffers of that many tokens' capacity, and each further token is one replay of a CUDA graph. ``loop``:
    ``"transformers"`` captures the model's forward, with every patch; ``"glqprof"`` runs bundled kernels over its bf16
    weights, and the experts that it was patched with. ``ssm``: the Mamba-2 step, of `glqprof.patch`; None is the
    model's own, or, in glqprof's loop, the fastest. ``graph`` False: the same token eagerly, also on the CPU.
    ``shared_stream``: of glqprof's loop, the shared expert beside the routed ones. ``eos_token_id``: stops after such
    a token; None never stops. ``on_token`` is called with each new token as the host reads it.

    The likeliest token is taken, the lowest id where several are. Raises InputError: another model, more than one
    sequence, ids outside the vocabulary, experts that cannot be captured, a capture that fails.
    """
    import torch

    from glqprof.workloads.nemotron_h.runs import prepare_loop, read_prompt, token_run

    _check(model, input_ids, max_new_tokens)
    device = model.device.type
    try:
        how = How(loop, ssm, "static", graph, shared_stream=shared_stream).settled(_variant_of(model), device)
    except InputError as error:
        raise InputError(SUBJECT, str(error).replace("--", "")) from None
    stops = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())
    prompt = input_ids.to(model.device)
    if max_new_tokens == 0:
        return prompt
    prepare_loop(how, device)
    new: list[int] = []

    def take(token: int) -> bool:
        new.append(token)
        if on_token is not None:
            on_token(token)
        return token not in stops and len(new) < max_new_tokens

    with torch.inference_mode():
        prompted = read_prompt(model, prompt)
        if take(prompted.first):
            with token_run(model, prompted, how, max_new_tokens) as run:
                while take(run()):
                    pass
    return torch.cat([prompt, torch.tensor([new], dtype=prompt.dtype, device=prompt.device)], dim=1)


def _check(model: Any, input_ids: Any, max_new_tokens: int) -> None:
    """InputError for a model or ids that cannot be decoded."""
    import torch

    if not any(c.__name__ == "NemotronHForCausalLM" for c in type(model).__mro__):
        raise InputError(SUBJECT, f"takes a NemotronHForCausalLM of transformers, not {type(model).__name__}")
    if model.training:
        raise InputError(SUBJECT, "the model is in training mode; call model.eval() first")
    devices = {str(p.device) for p in model.parameters()}
    if len(devices) != 1:
        raise InputError(SUBJECT, f"the model is on {', '.join(sorted(devices))}; it must be on one device")
    if not isinstance(input_ids, torch.Tensor) or input_ids.dtype != torch.int64 or input_ids.dim() != 2:
        raise InputError(SUBJECT, "input_ids must be an int64 tensor [1, length]")
    if input_ids.shape[0] != 1 or input_ids.shape[1] == 0:
        raise InputError(SUBJECT, f"decodes one sequence of at least one token, and input_ids is {[*input_ids.shape]}")
    vocab = model.config.vocab_size
    if int(input_ids.min()) < 0 or int(input_ids.max()) >= vocab:
        raise InputError(SUBJECT, f"input_ids holds ids outside 0 to {vocab - 1}")
    if not isinstance(max_new_tokens, int) or max_new_tokens < 0:
        raise InputError(SUBJECT, f"max_new_tokens is {max_new_tokens!r}; it must be 0 or more")


def _variant_of(model: Any) -> ExpertVariant:
    """The variant that the model was patched with; one that can be captured where its experts are its own."""
    from glqprof.workloads.nemotron_h.experts import Experts

    names = [moe.experts.variant for moe in moe_modules(model) if isinstance(moe.experts, Experts)]
    found = [VARIANTS[name] for name in names]
    return next((variant for variant in found if variant.reads_ids), ExpertVariant("the model's own", BF16))
