"""What the SSM variants declare to the bench, held against their CPU runs, and the command as a user meets it."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
import torch
from typer.testing import CliRunner

from glqprof.bench.registry import Registry, SameBits
from glqprof.cli.app import app
from glqprof_kernels.ssm import variants
from glqprof_kernels.ssm.workload import geometries, make_batch, make_workload


@pytest.fixture(scope="module")
def registry() -> Registry:
    filled = Registry()
    variants.register(filled)
    return filled


@pytest.fixture(scope="module", params=[{}, {"state": "bf16"}], ids=str)
def workload(request):
    return make_workload("tiny-ssm", None, 0, "cpu", request.param)


def outputs(registry, workload, batch, name):
    out = registry.groups["ssm-step"].out(workload, batch)
    out.view(torch.uint8).fill_(0xA5)
    registry.variants["ssm-step", name].build(workload)(batch, out)
    return out


def test_names_and_contracts(registry) -> None:
    found = {variant.name: variant for variant in registry.of_group("ssm-step")}
    assert list(found) == ["torch", "unfused", "fused"]
    assert found["fused"].contract == SameBits("unfused")
    assert all(variant.capturable for variant in found.values())
    assert registry.groups["ssm-step"].geometries == ("cascade2-30b", "tiny-ssm")
    sizes, layers = geometries()["cascade2-30b"]
    assert (sizes.heads, sizes.head_dim, sizes.state, sizes.groups, sizes.taps, layers) == (64, 64, 128, 8, 4, 23)


@pytest.mark.parametrize("rows", [1, 3])
def test_every_batch(registry, workload, rows) -> None:
    """Same bits, launches as declared, everything written, random batches near float64, states as they were."""
    group = registry.groups["ssm-step"]
    batches = [("random", group.batch(workload, rows, 9)), *group.adversarial(workload, rows)]
    kept = [[t.clone() for t in states[:2]] for states in batches[0][1].states]
    for label, batch in batches:
        unfused = outputs(registry, workload, batch, "unfused")
        for name in ("unfused", "fused"):
            variant = registry.variants["ssm-step", name]
            variant.launch_log.clear()
            out = outputs(registry, workload, batch, name)
            assert torch.equal(out.view(torch.int16), unfused.view(torch.int16)), (label, name)
            declared = variant.kernels(workload, batch)
            seen = Counter(next(p for p in declared if re.search(p, kernel)) for kernel in variant.launch_log.kernels)
            assert dict(seen) == declared == dict.fromkeys(declared, 2), (label, name)
        if label in ("random", "one row", "non-contiguous views", "no time step", "large time steps"):
            want = group.reference(workload, batch)
            for name in ("torch", "unfused"):
                gap = outputs(registry, workload, batch, name).double() - want
                relative = (gap.flatten(1).norm(dim=1) / want.flatten(1).norm(dim=1)).max().item()
                assert relative < registry.variants["ssm-step", name].contract.rel_err, (label, name)
    for states, before in zip(batches[0][1].states, kept, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(states[:2], before, strict=True))


def test_adversarial_batches_are_what_they_say(registry, workload) -> None:
    batches = dict(registry.groups["ssm-step"].adversarial(workload, 2))
    assert batches["one row"].rows == 1
    assert not batches["non-contiguous views"].projected.is_contiguous()
    assert 0 < batches["denormals"].projected.float().abs().max() < 2**-126
    out = outputs(registry, workload, batches["NaN in C"], "fused")
    assert out[:, 0].isnan().sum() == 2 * 32  # its group of one row of each layer
    assert not out[:, 1].isnan().any()
    assert not torch.isfinite(outputs(registry, workload, batches["overflow of the products"], "fused")).all()
    assert (outputs(registry, workload, batches["closed gates"], "fused") == 0).all()


def test_bytes_of_a_token_of_the_model(registry) -> None:
    """2 MiB of state a layer, read and written, are nearly all; counted apart from the variant's own arithmetic."""
    workload = make_workload("cascade2-30b", 1, 0, "cpu")
    for rows in (1, 2):
        state = 2 * 64 * 64 * 128 * 4
        conv = 2 * 6144 * 4 * 2
        around = 2 * (4096 + 6144 + 64) + 2 * 4096
        weights = 2 * (6144 * 4 + 6144 + 4096 + 64 + 64) + 4 * 64
        want = rows * (state + conv + around) + weights
        batch = make_batch(workload, rows, 0)
        for name in ("torch", "unfused", "fused"):
            assert registry.variants["ssm-step", name].bytes_moved(workload, batch) == want
    assert state / want > 0.4


def test_results_of_a_sequence_do_not_depend_on_how_many_there_are(registry, workload) -> None:
    one, three = make_batch(workload, 1, 5), make_batch(workload, 3, 5)
    three.projected[:, 0] = one.projected[:, 0]
    a, b = (outputs(registry, workload, batch, "fused") for batch in (one, three))
    assert torch.equal(a[:, 0], b[:, 0])


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="ssm-step has no option stages; it has state"):
        make_workload("tiny-ssm", None, 0, "cpu", {"stages": 3})
    with pytest.raises(ValueError, match="state is 'fp8'; it must be fp32 or bf16"):
        make_workload("tiny-ssm", None, 0, "cpu", {"state": "fp8"})


def test_the_command() -> None:
    command = ["bench", "ssm-step", "--device", "cpu", "--repeats", "1", "--layers", "2", "--format", "json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    fused = {v["name"]: v for v in data["variants"]}["fused"]
    assert (data["group"], data["geometry"], fused["launches"], fused["syncs"]) == ("ssm-step", "tiny-ssm", 2, 0)
    assert fused["ok"]
