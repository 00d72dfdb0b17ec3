"""A small decode loop to try a capture on: ``glqprof capture nsys -- python -m glqprof.workloads.toy_decode``.

Each token runs some layers eagerly, the rest as one replay of a CUDA graph, and copies its hidden state to the host on
a stream of its own while the next layers run. Without a GPU the same layers run as a plain loop on the CPU. Random
weights, greedy decoding: the tokens mean nothing, and are the same in every run on one machine.
"""

from __future__ import annotations

import argparse
from typing import Any

from glqprof import annotate

GRAPH_SHARE = 2
"""The last half of the layers is one graph."""


class ToyModel:
    """Residual layers of a norm and a square matrix product, and a head; ``layers`` of width ``width``.

    At the default width a layer's weights do not fit in the cache together with the others', so that its product takes
    tens of microseconds, as a decode's do.
    """

    def __init__(self, torch: Any, device: str, layers: int, width: int, vocabulary: int) -> None:
        self.torch, self.device = torch, device
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        generator = torch.Generator(device=device).manual_seed(0)

        def random(*shape: int) -> Any:
            return torch.randn(*shape, generator=generator, device=device, dtype=dtype) / width**0.5

        self.weights = [random(width, width) for _ in range(layers)]
        self.embedding = random(vocabulary, width)
        self.head = random(vocabulary, width)

    def layer(self, index: int, hidden: Any) -> Any:
        """One layer: hidden [1, width] to [1, width]."""
        functional = self.torch.nn.functional
        normed = functional.layer_norm(hidden, hidden.shape[-1:])
        return hidden + functional.gelu(functional.linear(normed, self.weights[index]))

    def embed(self, token: Any) -> Any:
        """Token id [1] to hidden [1, width]."""
        return self.embedding.index_select(0, token)

    def next_token(self, hidden: Any) -> Any:
        """The likeliest token id [1]."""
        return self.torch.nn.functional.linear(hidden, self.head).argmax(-1)


def main(argv: list[str] | None = None) -> None:
    """Decode and print how many tokens and their hash."""
    parser = argparse.ArgumentParser(description="A small decode loop with a CUDA graph and a copy stream.")
    parser.add_argument("--tokens", type=int, default=8, help="tokens to decode in the marked part")
    parser.add_argument("--warmup", type=int, default=3, help="tokens before it")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=0, help="default 8192 on a GPU, 256 on the CPU")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    arguments = parser.parse_args(argv)
    import torch

    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    width = arguments.width or (8192 if device == "cuda" else 256)
    with torch.inference_mode():
        model = ToyModel(torch, device, arguments.layers, width, vocabulary=1024)
        decoder = CudaDecoder(torch, model) if device == "cuda" else CpuDecoder(torch, model)
        ids = decode(decoder, arguments.warmup, arguments.tokens)
    sha = annotate.sha_of(ids)
    annotate.report(token_sha=sha, batch=1, workload="toy-decode", variant=device)
    print(f"decoded {len(ids)} tokens on {device}, sha {sha[:12]}")


def decode(decoder: CpuDecoder | CudaDecoder, warmup: int, tokens: int) -> list[int]:
    """Decode ``warmup`` tokens unmarked, then ``tokens`` in the marked part; the ids of the latter."""
    token = 1
    for _ in range(warmup):
        token = decoder.step(token)
    ids = []
    with annotate.profiled():
        decoder.prepare()
        for index in range(tokens):
            with annotate.decode_token(index):
                token = decoder.step(token)
            ids.append(token)
    return ids


class CpuDecoder:
    """All layers one after the other."""

    def __init__(self, torch: Any, model: ToyModel) -> None:
        self.torch, self.model = torch, model

    def prepare(self) -> None:
        """Nothing to capture."""

    def step(self, token: int) -> int:
        """Decode one token after ``token``."""
        hidden = self.model.embed(self.torch.tensor([token]))
        for index in range(len(self.model.weights)):
            with annotate.layer(f"{index:02d}_E"):
                hidden = self.model.layer(index, hidden)
        with annotate.layer(f"{len(self.model.weights):02d}_head"):
            return int(self.model.next_token(hidden))


class CudaDecoder:
    """The first layers eagerly, the others as a graph, copies on a second stream."""

    def __init__(self, torch: Any, model: ToyModel) -> None:
        self.torch, self.model = torch, model
        count = len(model.weights)
        self.eager_layers = range(count - count // GRAPH_SHARE)
        self.graph_layers = range(count - count // GRAPH_SHARE, count)
        self.copy_stream = torch.cuda.Stream()
        width = model.head.shape[1]
        self.on_host = torch.empty(1, width, dtype=model.head.dtype, pin_memory=True)
        self.graph_in = torch.zeros(1, width, dtype=model.head.dtype, device="cuda")
        self.graph: Any = None
        self._capture()

    def prepare(self) -> None:
        """Capture the graph again inside the marked part: its kernels lead to layers only if their making is seen."""
        self._capture()

    def _capture(self) -> None:
        torch = self.torch
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            self._graph_body()
        torch.cuda.current_stream().wait_stream(warm)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: a profiler's own thread may call CUDA meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.graph_out = self._graph_body()
        self.graph = graph

    def _graph_body(self) -> Any:
        hidden = self.graph_in
        for index in self.graph_layers:
            with annotate.layer(f"{index:02d}_G"):
                hidden = self.model.layer(index, hidden)
        return hidden

    def step(self, token: int) -> int:
        """Decode one token after ``token``."""
        torch = self.torch
        hidden = self.model.embed(torch.tensor([token], device="cuda"))
        for index in self.eager_layers:
            with annotate.layer(f"{index:02d}_E"):
                hidden = self.model.layer(index, hidden)
        self.copy_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.copy_stream):
            self.on_host.copy_(hidden, non_blocking=True)
        self.graph_in.copy_(hidden)
        self.graph.replay()
        with annotate.layer(f"{len(self.model.weights):02d}_head"):
            chosen = self.model.next_token(self.graph_out)
            torch.cuda.current_stream().wait_stream(self.copy_stream)
            return int(chosen)


if __name__ == "__main__":
    main()
