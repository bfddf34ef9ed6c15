"""Ranks that do not all do the same: parameters that some or all do not use, inputs that end."""

from __future__ import annotations

import gradwire.torch
import pytest
import torch
from test_torch_ddp import batches, small_model
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import digest, on_ranks

ELEMENTS = (40, 50)
UNUSED = {"find_unused_parameters": True, "bucket_cap_mb": 0.005}  # a bucket each
USERS = [  # ranks that use the first expert, in each step; the second one is used by the others
    {0, 1},
    set(),
    {1},
    {0},
    set(),
    set(),
    {0, 1},
    {1},
    {0, 1},
    set(),
]


class Experts(nn.Module):
    """Its gradients are other in every step and on every rank, and do not depend on its weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Parameter(torch.zeros(3))
        self.first, self.second, self.common, self.never = (
            nn.Parameter(torch.randn(ELEMENTS)) for _ in range(4)
        )

    def forward(self, users: set[int], factors: list[torch.Tensor]):
        expert = self.first if distributed.get_rank() in users else self.second
        return (expert * factors[0]).sum() + (self.common * factors[1]).sum() + self.gate.sum()


def factors_of(step: int, rank: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(ELEMENTS, generator=random) for _ in range(2)]


def train(model: Ddp, optimizer: torch.optim.Optimizer, rank: int, users: list[set[int]]) -> None:
    for step, of_first in enumerate(users):
        optimizer.zero_grad()
        model(of_first, factors_of(step, rank)).backward()
        optimizer.step()


def experts(rank: int, ours: bool, options: dict, ddp: dict, users: list[set[int]]):
    model = Ddp(Experts(), **ddp)
    if ours:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        gradwire.torch.residual(model, optimizer, exact=["*"], **options)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **options)
    train(model, optimizer, rank, users)
    assert not ours or gradwire.torch.stats(model).steps == len(users)
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize(
    "ddp, users",
    [
        (UNUSED, USERS),
        ({**UNUSED, "skip_all_reduce_unused_params": True}, [{0, 1}] * 5),
        ({"static_graph": True}, [{0, 1}] * 5),
        ({"static_graph": True, "find_unused_parameters": True}, [{0, 1}] * 5),
    ],
)
@pytest.mark.parametrize(
    "options",
    [{"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.5, "nesterov": True}],
)
def test_momentum_and_decay_of_a_parameter_rest_while_nobody_uses_it(ddp, users, options):
    plain = on_ranks(2, experts, False, options, ddp, users)[0]
    ours = on_ranks(2, experts, True, options, ddp, users)
    for first, second, reference in zip(*ours, plain, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, reference, rtol=1e-4, atol=1e-5)


def in_turn(rank: int, ours: bool, ddp: dict) -> list[torch.Tensor]:
    """Each expert has an optimizer of its own, and the last gradient while the other is trained."""
    model = Ddp(Experts(), **ddp)
    experts = model.module.first, model.module.second
    options = {} if ours else {"momentum": 0.9}
    optimizers = [torch.optim.SGD([expert], lr=0.05, **options) for expert in experts]
    if ours:
        gradwire.torch.residual(model, optimizers[0], momentum=0.9, exact=["*"])
    for step in range(8):
        optimizer = optimizers[step % 2]
        optimizer.zero_grad()
        model({0, 1} if step % 2 == 0 else set(), factors_of(step, rank)).backward()
        optimizer.step()
    return [expert.detach() for expert in experts]


@pytest.mark.parametrize("as_view", [False, True])
def test_a_gradient_that_is_left_from_an_earlier_step_is_not_sent_again(as_view):
    ddp = {**UNUSED, "gradient_as_bucket_view": as_view}
    plain = on_ranks(2, in_turn, False, ddp)[0]
    for mine in on_ranks(2, in_turn, True, ddp):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5)


def delivered(rank: int, codec: str, users: list[set[int]]):
    """All that the model received, the last of it exactly, so that nothing is held back."""
    model = Ddp(Experts(), **UNUSED)
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    gradwire.torch.compress(model, f"{codec}+feedback")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train(model, optimizer, rank, users)
    optimizer.zero_grad()
    with gradwire.torch.exact():
        model({0}, factors_of(99, rank)).backward()  # each expert has a user
    optimizer.step()
    moved = {name: before[name] - p.detach() for name, p in model.module.named_parameters()}
    return digest(model), moved


@pytest.mark.parametrize("codec", ["topk:density=0.05", "sign", "uniform:bits=2"])
def test_what_was_held_back_of_an_unused_parameter_is_not_lost(codec):
    expected = {name: torch.zeros(ELEMENTS) for name in ("first", "second", "common")}
    for step, users in [*enumerate(USERS), (99, {0})]:
        for rank in range(2):
            to_expert, to_common = factors_of(step, rank)
            expected["first" if rank in users else "second"] += to_expert / 2
            expected["common"] += to_common / 2
    (bits, moved), (other_bits, _) = on_ranks(2, delivered, codec, USERS)
    assert bits == other_bits
    for name, total in expected.items():
        torch.testing.assert_close(moved[name], total, rtol=1e-4, atol=1e-4)


# -------------------------------------------------------------------------------------------------
# Inputs that end


def uneven(rank: int, codec: str | None, feedback: bool, options: dict) -> torch.Tensor:
    model = Ddp(small_model(), bucket_cap_mb=0.01, find_unused_parameters=feedback)
    if codec:
        gradwire.torch.compress(model, f"{codec}+feedback" if feedback else codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join(**options):
        for x, y in batches(rank, 5 + 4 * rank):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize(
    "codec, error",
    [("none", 0), ("uniform:bits=8", 0.02), ("grid:step=0.5", 0.2), ("topk:density=0.5", 0.2)],
)
def test_ranks_whose_inputs_have_ended_join_the_others(codec, error, feedback):
    plain = on_ranks(2, uneven, None, False, {})[0]
    first, second = on_ranks(2, uneven, codec, feedback, {})
    assert torch.equal(first, second)
    untrained = torch.cat([each.detach().flatten() for each in small_model().parameters()])
    assert (first - plain).norm() <= error * (plain - untrained).norm()


def without_inputs(rank: int) -> tuple[str, float]:
    """One rank has nothing to train with, and never runs the model."""
    model = Ddp(small_model(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join():
        for x, y in batches(rank, 0 if rank == 1 else 4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return digest(model), gradwire.torch.stats(model).ratio


def test_a_rank_without_any_input_joins_the_others_in_unchanged_scripts():
    environment = {"GRADWIRE": "1", "GRADWIRE_CONNECT_TIMEOUT": "6"}
    (one, ratio), (other, _) = on_ranks(2, without_inputs, environment=environment)
    assert one == other
    assert ratio > 2


def divided_by_those_left(rank: int) -> None:
    with pytest.raises(ValueError, match=r"join\(divide_by_initial_world_size=True\)"):
        uneven(rank, "none", False, {"divide_by_initial_world_size": False})


def test_division_by_the_ranks_that_are_left_is_refused():
    on_ranks(1, divided_by_those_left)


def divided_unknowingly(rank: int) -> None:
    with pytest.raises(ValueError, match=r"join\(divide_by_initial_world_size=True\)"):
        uneven(rank, None, False, {"divide_by_initial_world_size": False})


def test_division_by_the_ranks_that_are_left_is_refused_in_unchanged_scripts():
    on_ranks(1, divided_unknowingly, environment={"GRADWIRE": "1"})
