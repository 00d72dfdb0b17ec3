"""Mark the steps of a decode, from the script that runs it: ``from glqprof import annotate``.

    with annotate.profiled():                      # what a profiler records, when it is told to wait for a mark
        for i in range(tokens):
            with annotate.decode_token(i):         # NVTX range decode_token_<i>: a step of `glqprof breakdown`
                with annotate.layer("00_moe"):     # NVTX range layer_00_moe
                    ...
    annotate.report(token_sha=annotate.sha_of(ids))

Ranges go to the library ``nvtx``, else to ``torch.cuda.nvtx`` of a torch that the script has imported, else nowhere.
With no profiler attached they cost well under a microsecond. Under ``glqprof capture`` the steps' times and what
`report` is given also go to the manifest. Only the standard library is imported here: a script pays nothing for it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

REPORT_DIR_VARIABLE = "GLQPROF_REPORT_DIR"
"""The folder in which a captured process leaves its step times; `glqprof capture` sets it."""

STEP_PREFIX, LAYER_PREFIX = "decode_token_", "layer_"


class Sink(Protocol):
    """Where ranges go."""

    def push(self, name: str) -> object:
        """Open a range on this thread."""

    def pop(self) -> object:
        """Close this thread's innermost range."""


class RangeRecorder(Sink, Protocol):
    """A sink of a tool inside this process, which also follows `profiled`."""

    def start(self) -> object:
        """The marked part begins."""

    def stop(self) -> object:
        """The marked part ends."""


class _Off:
    """What a range is when nothing listens."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


class _Range:
    __slots__ = ("_name", "_sink")

    def __init__(self, sink: Sink, name: str) -> None:
        self._sink, self._name = sink, name

    def __enter__(self) -> None:
        self._sink.push(self._name)

    def __exit__(self, *error: object) -> None:
        self._sink.pop()


class _Step:
    """A range that is also timed for the manifest."""

    __slots__ = ("_name", "_sink", "_start")

    def __init__(self, sink: Sink | None, name: str) -> None:
        self._sink, self._name, self._start = sink, name, 0

    def __enter__(self) -> None:
        if self._sink is not None:
            self._sink.push(self._name)
        self._start = time.perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        end = time.perf_counter_ns()
        if self._sink is not None:
            self._sink.pop()
        _state.steps.append((self._start, end, _state.inside_profiled))


class _Profiled:
    """The marked part of a run; only the outermost counts."""

    def __enter__(self) -> None:
        _state.profiled_depth += 1
        if _state.profiled_depth == 1:
            _state.inside_profiled = True
            if _state.recorder is not None:
                _state.recorder.start()
            _cuda_profiler("start")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _state.profiled_depth -= 1
        if _state.profiled_depth == 0:
            _cuda_profiler("stop")
            if _state.recorder is not None:
                _state.recorder.stop()
            _state.inside_profiled = False
            _state.write()


class _State:
    """What this process has recorded. One per process: a fork starts anew."""

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.looked = False
        self.nvtx_installed: bool | None = None  # asked once: looking for what is not there is slow
        self.recorder: RangeRecorder | None = None
        self.report_dir = os.environ.get(REPORT_DIR_VARIABLE, "")
        self.forget()

    def forget(self) -> None:
        self.steps: list[tuple[int, int, bool]] = []
        self.facts: dict[str, Any] = {}
        self.inside_profiled = False
        self.profiled_depth = 0

    def find_sink(self) -> Sink | None:
        """Look for a library, again and again until there is one: the script may import torch later."""
        if self.nvtx_installed is None:
            self.nvtx_installed = _is_installed("nvtx")
        if self.nvtx_installed:
            self.sink, self.looked = _nvtx_sink(), True
        elif "torch" in sys.modules:
            self.sink, self.looked = _torch_sink(), True
        return self.sink

    def write(self) -> None:
        """Leave the report for `glqprof capture`, whole or not at all; never fail the user's program for it."""
        if not self.report_dir or not (self.steps or self.facts):
            return
        marked = any(profiled for _, _, profiled in self.steps)
        content = {
            "marked": marked,
            "steps": [[start, end] for start, end, profiled in self.steps if profiled or not marked],
            "facts": self.facts,
            "versions": _versions(),
        }
        path = Path(self.report_dir) / f"{os.getpid()}.json"
        with contextlib.suppress(OSError):
            beside = path.with_suffix(".part")
            beside.write_text(json.dumps(content), encoding="utf-8")
            beside.replace(path)


def decode_token(index: int) -> Any:
    """A context: one decode step, NVTX range ``decode_token_<index>``."""
    sink = _state.sink if _state.looked else _state.find_sink()
    if _state.report_dir:
        return _Step(sink, f"{STEP_PREFIX}{index}")
    return _OFF if sink is None else _Range(sink, f"{STEP_PREFIX}{index}")


def layer(name: str) -> Any:
    """A context: one layer of a step, NVTX range ``layer_<name>``; by convention NN_KIND, such as 00_moe."""
    sink = _state.sink if _state.looked else _state.find_sink()
    if sink is None:
        return _OFF
    return _Range(sink, name if name.startswith(LAYER_PREFIX) else LAYER_PREFIX + name)


def profiled() -> Any:
    """A context: the part of the run that a profiler should record (cudaProfilerStart and cudaProfilerStop).

    Put it around warm steps; it waits for the GPU at both ends. Under ``glqprof capture`` only steps inside it are
    counted, in the untraced run too.
    """
    return _Profiled()


def report(
    *,
    token_sha: str | None = None,
    tokens: int | None = None,
    batch: int | None = None,
    workload: str | None = None,
    variant: str | None = None,
) -> None:
    """Tell ``glqprof capture`` what was decoded; without it, nothing happens.

    ``token_sha``: see `sha_of`. ``tokens``: decoded in the marked steps, all sequences together; default ``batch`` a
    step. ``batch``: sequences a step. ``workload`` and ``variant`` name what ran.
    """
    if not _state.report_dir:
        return
    given = {"token_sha": token_sha, "tokens": tokens, "batch": batch, "workload": workload, "variant": variant}
    _state.facts |= {key: value for key, value in given.items() if value is not None}
    _state.write()


def sha_of(token_ids: Iterable[int]) -> str:
    """SHA-256 over the decoded token ids, joined by commas: equal where two runs decoded the same tokens."""
    return hashlib.sha256(",".join(str(int(token)) for token in token_ids).encode()).hexdigest()


class ModuleRanges:
    """The hooks that `module` registered; ``remove()`` takes them off again."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def module(model: Any) -> ModuleRanges:
    """Add a range around the forward call of every submodule of a torch module, by hooks.

    Members of the outermost ``ModuleList`` (a decoder's layers) become ``layer_<NN>_<class>``, which `glqprof
    breakdown` groups by; all others carry their qualified name. Hooks are Python: each call of a module pays for two
    of them, also when no profiler is attached.
    """
    handles: list[Any] = []
    for name, part, is_layer in _named_parts(model):
        index = name.rpartition(".")[2]
        label = f"{LAYER_PREFIX}{int(index):02d}_{type(part).__name__}" if is_layer else name

        def enter(_module: Any, _inputs: Any, label: str = label) -> None:
            sink = _state.sink if _state.looked else _state.find_sink()
            if sink is not None:
                sink.push(label)

        def leave(_module: Any, _inputs: Any, _output: Any) -> None:
            if _state.sink is not None:
                _state.sink.pop()

        handles.append(part.register_forward_pre_hook(enter))
        # Called when forward raises too: an open range would swallow all that follows.
        handles.append(part.register_forward_hook(leave, always_call=True))
    return ModuleRanges(handles)


def _named_parts(model: Any) -> Iterable[tuple[str, Any, bool]]:
    """Every submodule that is called: its name, itself, and whether it is a member of the outermost module list."""
    lists: list[str] = []
    for name, part in model.named_modules():
        if not name:
            continue
        inside = any(name.startswith(f"{outer}.") for outer in lists)
        if type(part).__name__ == "ModuleList":
            if not inside:
                lists.append(name)
            continue
        parent, _, index = name.rpartition(".")
        yield name, part, parent in lists and index.isdigit()


def attach(recorder: RangeRecorder) -> None:
    """Send ranges to a tool inside this process instead of to NVTX; for glqprof's own tracers."""
    _state.sink, _state.looked, _state.recorder = recorder, True, recorder


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


class _NvtxSink:
    """The ``nvtx`` library's default domain, whose message handles are kept: making one costs more than a range."""

    def __init__(self, domain: Any) -> None:
        self._push, self.pop = domain.push_range, domain.pop_range
        self._make = domain.get_event_attributes
        self._known: dict[str, Any] = {}

    def push(self, name: str) -> None:
        attributes = self._known.get(name)
        if attributes is None:
            attributes = self._known[name] = self._make(message=name)
        self._push(attributes)


def _nvtx_sink() -> Sink | None:
    try:
        import nvtx

        domain = nvtx.get_domain()
        # The library's own answer to whether a tool is attached; older ones always give a real domain.
        return None if type(domain).__name__ == "DummyDomain" else _NvtxSink(domain)
    except Exception:  # a broken library must not end the user's program
        return None


class _TorchSink:
    def __init__(self, library: Any) -> None:
        self.push, self.pop = library.range_push, library.range_pop


def _torch_sink() -> Sink | None:
    try:
        from torch.cuda import nvtx

        sink = _TorchSink(nvtx)
        sink.push("glqprof")
        sink.pop()
    except Exception:  # a build without CUDA raises RuntimeError at the first range
        return None
    return sink


def _cuda_profiler(action: str) -> None:
    """cudaProfilerStart or cudaProfilerStop through a library that the script has loaded, where the GPU is idle.

    Work that is in flight at an end of the recording would be in it without its call, or not at all.
    """
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    try:
        if torch is not None and torch.cuda.is_available():
            torch.cuda.synchronize()
            getattr(torch.cuda.profiler, action)()
        elif cupy is not None:
            getattr(cupy.cuda.profiler, action)()
    except Exception as error:
        print(f"glqprof: cudaProfiler{action.title()} failed: {error}", file=sys.stderr)


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            found[name] = str(version)
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    if cuda:
        found["cuda"] = str(cuda)
    return found


_OFF = _Off()
_state = _State()
if _state.report_dir:
    atexit.register(_state.write)
    os.register_at_fork(after_in_child=_state.forget)
