"""glqprof's own decode loop: a token through a nemotron_h model's weights by the bundled kernels, without its modules.

A token is an embedding, then per layer one residual add with norm, the layer's products and its step, and a head that
gives the next token: `glqprof_kernels.step`, `glqprof_kernels.ssm` and whatever computes the routed experts. The host
only launches, so the whole token can be captured. On the CPU the same loop runs the kernels' plain torch versions.
"""

from __future__ import annotations

from typing import Any

import torch

from glqprof import annotate
from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.loop_layers import SUBJECT, Addends, Buffers, Launch, make_layer
from glqprof.workloads.nemotron_h.static_cache import StaticState

MAX_BATCH = 8
"""Sequences that the kernels take at once."""


def prepare_step(device: str) -> None:
    """Build or load the CUDA extension of the step kernels; InputError where it cannot be built."""
    if torch.device(device).type != "cuda":
        return
    from glqprof_kernels.step import extension

    try:
        extension.load()
    except RuntimeError as error:
        raise InputError("--loop glqprof", " ".join(str(error).split())) from None


class GlqprofStep:
    """A token of glqprof's loop; see `steps.Step`.

    The model's weights are read where they are: nothing is copied but −exp(A_log), and what replaces a parameter later
    is not seen. Its modules' forwards are not called, so their hooks do not run, but those of experts of its own.
    """

    def __init__(
        self,
        model: Any,
        token: Any,
        state: StaticState,
        *,
        ssm: str | None = None,
        shared_stream: bool = False,
        implementation: str | None = None,
        dependent: bool = True,
    ) -> None:
        """``token``: [batch, 1] int64. ``ssm``: a variant of `glqprof_kernels.ssm`, fused by default.

        ``shared_stream``: the shared expert runs beside the routed ones. InputError for a model that the kernels do
        not take: other than bf16, latent projections, grouped routing.
        """
        cuda = token.device.type == "cuda"
        batch = token.shape[0]
        if not 1 <= batch <= MAX_BATCH:
            raise InputError(SUBJECT, f"takes 1 to {MAX_BATCH} sequences, not {batch}")
        self.token, self.state, self._flat = token, state, token.view(-1)
        side = torch.cuda.Stream() if shared_stream and cuda else None
        self.launch = Launch(implementation or ("cuda" if cuda else "torch"), ssm or "fused", dependent, side)
        self.buffers = Buffers(model, state, batch)
        blocks = model.model.layers
        self.layers = [make_layer(i, block, self.buffers, self.launch, state) for i, block in enumerate(blocks)]
        self.names = [f"{index:02d}_{kind}" for index, kind in enumerate(state.kinds)]
        self.head_name = f"{len(blocks):02d}_head"
        self.table, self.head = model.model.embeddings.weight.detach(), model.lm_head.weight.detach()
        self.norm, self.eps = model.model.norm_f.weight.detach(), float(model.model.norm_f.variance_epsilon)
        for name, weight in (("embedding", self.table), ("head", self.head)):
            if weight.dtype != torch.bfloat16:
                raise InputError(SUBJECT, f"takes bf16 models, and the {name} is {weight.dtype}")

    @property
    def logits(self) -> Any:
        """[batch, vocab] bf16 of the last token that ran."""
        return self.buffers.logits

    def run(self) -> None:
        """Launch one token on the current stream; nothing is read or, but by experts of torch's, allocated."""
        from glqprof_kernels.step import embed, head_argmax

        b, options = self.buffers, self.launch.options
        embed(self.table, self._flat, b.residual, **options)
        addends: Addends = (None, None)
        for name, layer in zip(self.names, self.layers, strict=True):
            with annotate.layer(name):
                addends = layer.run(addends)
        with annotate.layer(self.head_name):
            self._head(addends, head_argmax)
        self.state.lengths.add_(1)

    def _head(self, addends: Addends, head_argmax: Any) -> None:
        from glqprof_kernels.step import add_rms_norm

        b, options = self.buffers, self.launch.options
        joined = {**options, "dependent": options["dependent"] and not (self.launch.side and addends[1] is not None)}
        add_rms_norm(b.residual, addends[0], self.norm, self.eps, b.x, second=addends[1], **joined)
        head_argmax(b.x, self.head, self._flat, logits=b.logits, workspace=b.workspace, **options)
