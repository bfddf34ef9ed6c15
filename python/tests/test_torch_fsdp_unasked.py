"""FSDP2 models whose script says nothing of gradwire."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace

import gradwire.torch
import pytest
import torch
from gradwire.torch import fsdp
from test_torch_ddp import batches, small_model, train
from test_torch_fsdp import load_weights, weights_of
from test_torch_report import WANTED, Net, heard
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch_ranks import on_ranks

UNCHANGED = WANTED | {"GRADWIRE_CONNECT_TIMEOUT": "6"}


def sharded(mesh=None) -> Net:
    model = Net()
    fully_shard(model.inner[3], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def trained(rank: int, arguments: dict | None = None, compiled: bool = False):
    model = sharded()
    with heard() as lines:
        if arguments is not None:
            gradwire.torch.compress(model, **({"codec": "grid:step=0.5"} | arguments))
        train(torch.compile(model, backend="eager") if compiled else model, rank, 5)
    return weights_of(model), lines


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", ["gloo", "gradwire"])
def test_they_are_compressed_as_by_a_call_and_rank_0_says_so(backend, compiled):
    asked, _ = on_ranks(2, trained, {}, compiled)[0]
    environment = {"GRADWIRE_SUMMARY": "1"} if backend == "gradwire" else UNCHANGED
    (weights, lines), (other, silence) = on_ranks(
        2, trained, None, compiled, backend=backend, environment=environment
    )
    assert equal(weights, asked)
    assert equal(weights, other)
    first, last = lines
    assert first == (
        "gradwire: Net: 2 of 8 layers (91 % of the gradients) travel as grid:step=0.5, the others "
        "exactly; 2 ranks"
    )
    assert last.startswith("gradwire: Net: 5 steps; rank 0 sent ")
    assert silence == []


def test_without_being_asked_gradwire_compresses_none():
    plain, lines = on_ranks(2, trained)[0]
    assert lines == []
    assert not equal(plain, on_ranks(2, trained, {})[0][0])


def test_what_a_script_asks_for_holds():
    arguments = {"codec": "sign", "exact": ["inner.3.*"]}
    by_call, _ = on_ranks(2, trained, arguments)[0]
    weights, lines = on_ranks(2, trained, arguments, environment=UNCHANGED)[0]
    assert equal(weights, by_call)
    assert len(lines) == 2
    assert "1 of 8 layers (30 % of the gradients) travel as sign" in lines[0]


def compressed_late(rank: int, after: str):
    model = sharded()
    if after == "a step":
        train(model, rank, 1)
    elif after == "an evaluation":
        with torch.no_grad():
            model(torch.zeros(1, 32))
    gradwire.torch.compress(model, "fp16")
    train(model, rank, 1)
    return gradwire.torch.stats(model).layers["inner.3.weight"].codec, list(
        gradwire.torch.state_dict()["counters"]
    )


@pytest.mark.parametrize("after", ["nothing", "an evaluation", "a step"])
def test_a_script_may_still_ask_later(after):
    assert on_ranks(2, compressed_late, after, environment=UNCHANGED) == [("fp16", [0])] * 2


def by_environment(rank: int):
    model = sharded()
    train(model, rank, 3)
    found = gradwire.torch.stats(model).layers
    return {name: layer.codec for name, layer in found.items() if layer.codec != "none"}


def test_the_environment_says_how():
    environment = UNCHANGED | {"GRADWIRE_CODEC": "fp16", "GRADWIRE_EXACT": "*.3.*"}
    assert on_ranks(2, by_environment, environment=environment)[0] == {"inner.0.weight": "fp16"}


def in_exact_scopes(rank: int, codec: str):
    model = sharded()
    if codec:
        gradwire.torch.compress(model, codec)
        train(model, rank, 3)
    else:
        with gradwire.torch.exact():
            train(model, rank, 3)
    return weights_of(model)


def test_exact_scopes_hold():
    environment = UNCHANGED | {"GRADWIRE_SUMMARY": "0"}
    exact = on_ranks(3, in_exact_scopes, "", environment=environment)[0]
    assert equal(exact, on_ranks(3, in_exact_scopes, "none")[0])


# -------------------------------------------------------------------------------------------------
# Models that are left alone


class OfTheScript(ReduceScatter):
    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        distributed.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group)


def with_its_own(rank: int):
    model = sharded()
    model.set_custom_reduce_scatter(OfTheScript())
    with heard() as lines:
        train(model, rank, 2)
    return lines


def by_residual(rank: int):
    model = sharded()
    with heard() as lines:
        train(model, rank, 2)
    return lines


def on_cuda(rank: int):
    """As far as this machine can pretend."""
    group = SimpleNamespace(
        device=torch.device("cuda"), mesh_info=None, _reduce_scatter_comm=DefaultReduceScatter()
    )
    fsdp._param_groups = lambda model: [group]
    with heard() as lines:
        sharded()(torch.zeros(1, 32))
    return lines


@pytest.mark.parametrize(
    "script, more, why",
    [
        (on_cuda, {}, "Net uses FSDP2 on cuda, where its gradients travel exactly"),
        (with_its_own, {}, "Net has a reduce-scatter of its own"),
        (
            by_residual,
            {"GRADWIRE_RESIDUAL": "0.01"},
            "Net uses FSDP2, and residual compression is for DDP",
        ),
    ],
)
def test_models_that_are_left_alone_are_told_why(script, more, why):
    (lines, other) = on_ranks(2, script, environment=UNCHANGED | more)
    assert lines == [f"gradwire: nothing was compressed, because {why}"]
    assert other == []


# -------------------------------------------------------------------------------------------------
# Ranks meet in the first exchange


def differing(rank: int) -> str:
    os.environ["GRADWIRE_CODEC"] = ("sign", "fp16")[rank]
    model = sharded()
    x, y = next(batches(rank, 1))
    loss = nn.functional.cross_entropy(model(x), y)
    with pytest.raises(ValueError) as refused:
        loss.backward()
    return str(refused.value)


def test_ranks_that_differ_raise_in_their_first_backward_pass():
    for said in on_ranks(2, differing, environment=UNCHANGED):
        assert "rank 1 has codec=fp16 where rank 0 has codec=sign" in said


def replicated(rank: int, alone: bool):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = sharded(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if alone and rank < 2:  # the first replica
        with torch.no_grad():
            model(torch.zeros(1, 32))
        model(torch.zeros(1, 32))
    if alone:
        distributed.barrier()
    else:
        gradwire.torch.compress(model, "grid:step=0.5")
    train(model, rank, 3, optimizer=optimizer)
    stats = gradwire.torch.stats(model)
    return weights_of(model), stats.who.ranks, stats.layers["inner.3.weight"].ratio


def test_a_replica_may_evaluate_alone_before_all_train():
    by_call = on_ranks(4, replicated, False)
    for weights, ranks, ratio in on_ranks(4, replicated, True, environment=UNCHANGED):
        assert equal(weights, by_call[0][0])
        assert ranks == 4
        assert ratio > 3


def resumed(rank: int, state):
    """Eight steps, or four and four more."""
    model = sharded()
    if state:
        gradwire.torch.load_state_dict(state[rank][1])
        load_weights(model, state[rank][0])
    train(model, rank, 4, 4 if state else 0)
    return weights_of(model), gradwire.torch.state_dict()


def test_from_a_checkpoint_they_go_on_to_the_bit():
    environment = {"GRADWIRE": "1"}
    half = on_ranks(2, resumed, None, environment=environment)
    whole = on_ranks(2, twice_as_long, environment=environment)
    again = on_ranks(2, resumed, half, environment=environment)
    assert equal(again[0][0], whole[0])


def twice_as_long(rank: int):
    model = sharded()
    train(model, rank, 4)
    train(model, rank, 4, 4)
    return weights_of(model)


def at_other_steps(rank: int, state: dict, asks: bool) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = sharded(mesh)
    if asks:
        gradwire.torch.compress(model, "grid:step=0.5")
    if rank == 3:
        gradwire.torch.load_state_dict(state | {"rank": 3})
    x, y = next(batches(rank, 1))
    loss = nn.functional.cross_entropy(model(x), y)
    with pytest.raises(ValueError) as refused:
        loss.backward()
    return str(refused.value)


@pytest.mark.parametrize("asks", [False, True])
def test_ranks_at_other_steps_are_named(asks):
    state = on_ranks(4, stepped, environment=UNCHANGED)[0]
    for said in on_ranks(4, at_other_steps, state, asks, environment=UNCHANGED):
        assert "rank 3 is at step 2 where rank" in said


def stepped(rank: int) -> dict:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    train(sharded(mesh), rank, 2)
    return gradwire.torch.state_dict()


def planned(rank: int, asks: bool) -> str:
    model = sharded()
    if asks:
        gradwire.torch.compress(model, "grid:step=0.5")
    model(torch.zeros(1, 32))
    return gradwire.torch.plan(model).json()


def test_they_have_a_plan():
    one, other = on_ranks(2, planned, False, environment=UNCHANGED)
    assert one == other == on_ranks(2, planned, True)[0]
    assert '"inner.3.weight"' in one


def warned(rank: int, asks: bool) -> list[str]:
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("gradwire").addHandler(handler)
    model = sharded()
    if asks:
        gradwire.torch.compress(model, "grid:step=0.5")
    train(model, rank, 1)
    return lines


def test_a_pattern_that_matches_nothing_is_warned_of():
    environment = {"GRADWIRE": "1", "GRADWIRE_EXACT": "haed.*"}
    (line,), other = on_ranks(2, warned, False, environment=environment)
    assert "no layer of Net matches 'haed.*'" in line
    assert other == []
    assert on_ranks(2, warned, True, environment=environment) == [[], []]  # it asked otherwise


def two_models(rank: int):
    first, second = sharded(), fully_shard(small_model(1))
    train(first, rank, 2)
    train(second, rank, 2)
    return list(gradwire.torch.state_dict()["counters"])


def test_each_model_has_its_number():
    assert on_ranks(2, two_models, environment=UNCHANGED)[0] == [0, 1]
