"""Gradients that were exchanged, and that the script throws away or uses twice."""

from __future__ import annotations

import contextlib

import gradwire.torch
import pytest
import torch
from test_torch_ddp import batches, small_model
from test_torch_uneven import UNUSED, Experts, factors_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import on_ranks

REFUSED = r"thrown away without a step .*`with model.no_sync\(\):` .*requires_grad_\(False\)"

KEEPING = {
    "momentum": lambda model, optimizer: gradwire.torch.residual(model, optimizer, exact=["*"]),
    "feedback": lambda model, _: gradwire.torch.compress(model, "sign+feedback"),
}
"""Ways to compress that keep something of a gradient after its exchange."""


def sgd(model: nn.Module, **options) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.01, **options)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x, y = next(batches(rank, 1, step))
    return nn.functional.cross_entropy(model(x), y)


# -------------------------------------------------------------------------------------------------
# Adversaries


@contextlib.contextmanager
def frozen(model: nn.Module):
    model.requires_grad_(False)
    yield
    model.requires_grad_(True)


MEANWHILE = {
    "nothing": lambda model: contextlib.nullcontext(),
    "no_sync": lambda model: model.no_sync(),
    "frozen": frozen,
}
"""What a script does with the critic while the generator's loss flows through it."""


def adversaries(rank: int, keeping: str | None, meanwhile: str) -> torch.Tensor:
    torch.manual_seed(0)
    critic, generator = (Ddp(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 32))) for _ in "ab")
    options = {} if keeping else {"momentum": 0.9}
    of_critic, of_generator = (sgd(model, **options) for model in (critic, generator))
    if keeping:
        KEEPING[keeping](critic, of_critic)
        KEEPING[keeping](generator, of_generator)
    for x, _ in batches(rank, 6):
        of_critic.zero_grad()
        (critic(x).square().mean() - critic(generator(x).detach()).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        with MEANWHILE[meanwhile](critic):
            critic(generator(x)).mean().backward()
        of_generator.step()
    return torch.cat([parameter.detach().flatten() for parameter in critic.parameters()])


def refused_adversaries(rank: int, keeping: str) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        adversaries(rank, keeping, "nothing")


@pytest.mark.parametrize("keeping", KEEPING)
def test_gradients_of_a_critic_that_only_its_generator_needs_are_refused(keeping):
    on_ranks(2, refused_adversaries, keeping)


@pytest.mark.parametrize("meanwhile", ["no_sync", "frozen"])
def test_a_critic_that_keeps_them_to_itself_trains_as_ever(meanwhile):
    plain = on_ranks(2, adversaries, None, meanwhile)[0]
    for mine in on_ranks(2, adversaries, "momentum", meanwhile):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5)
    on_ranks(2, adversaries, "feedback", meanwhile)


# -------------------------------------------------------------------------------------------------
# Steps that are left out


def leaves_out_steps(rank: int, keeping: str, left_out: set[int], to_none: bool = True) -> None:
    model = Ddp(small_model())
    optimizer = sgd(model)
    KEEPING[keeping](model, optimizer)
    for step in range(6):
        optimizer.zero_grad(set_to_none=to_none)
        loss_of(model, rank, step).backward()
        if step not in left_out:
            optimizer.step()


def refused_steps(rank: int, keeping: str, left_out: set[int], to_none: bool) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        leaves_out_steps(rank, keeping, left_out, to_none)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("left_out", [{0}, {2, 3}])
@pytest.mark.parametrize("keeping", KEEPING)
def test_steps_that_the_script_leaves_out_are_refused(keeping, left_out, to_none):
    on_ranks(2, refused_steps, keeping, left_out, to_none)


def leaves_out_without_keeping(rank: int) -> None:
    model = Ddp(small_model())
    gradwire.torch.compress(model, "grid+feedback", exact=["*"])
    optimizer = sgd(model)
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        if step % 2 == 0:
            optimizer.step()


def test_steps_may_be_left_out_where_nothing_is_kept():
    on_ranks(1, leaves_out_without_keeping)


def leaves_out_steps_of_an_expert(rank: int) -> None:
    """Rank 0 alone sees a gradient of the first expert after one was thrown away."""
    model = Ddp(Experts(), **UNUSED)
    gradwire.torch.compress(model, "sign+feedback")
    optimizer = sgd(model)
    with pytest.raises(ValueError, match=REFUSED):
        for step, users in enumerate([{0, 1}, {0, 1}, {0}, {0, 1}]):
            optimizer.zero_grad()
            model(users, factors_of(step, rank)).backward()
            if step != 1:
                optimizer.step()


def test_all_ranks_refuse_alike_what_one_of_them_has_seen():
    on_ranks(2, leaves_out_steps_of_an_expert)


# -------------------------------------------------------------------------------------------------
# Ordinary loops


def step_before_zeroing(model: Ddp, optimizer, rank: int, to_none: bool) -> None:
    for step in range(5):
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)


def zeroing_before_step(model: Ddp, optimizer, rank: int, to_none: bool) -> None:
    for step in range(5):
        optimizer.zero_grad(set_to_none=to_none)
        loss_of(model, rank, step).backward()
        optimizer.step()


def parts_of_a_step(model: Ddp, optimizer, rank: int, to_none: bool) -> None:
    for step in range(9):
        with contextlib.nullcontext() if step % 3 == 2 else model.no_sync():
            loss_of(model, rank, step).backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)


def inputs_that_end(model: Ddp, optimizer, rank: int, to_none: bool) -> None:
    for _ in range(3):  # epochs
        with model.join():
            for step in range(2 + 2 * rank):
                optimizer.zero_grad(set_to_none=to_none)
                loss_of(model, rank, step).backward()
                optimizer.step()


def weights_that_change_by_themselves(model: Ddp, optimizer, rank: int, to_none: bool) -> None:
    """As averages of them are put in their place for an evaluation, and they come back."""
    for epoch in range(3):
        for step in range(3):
            optimizer.zero_grad(set_to_none=to_none)
            loss_of(model, rank, 3 * epoch + step).backward()
            optimizer.step()
        model.load_state_dict({name: each.clone() for name, each in model.state_dict().items()})


ORDINARY = [
    step_before_zeroing,
    zeroing_before_step,
    parts_of_a_step,
    inputs_that_end,
    weights_that_change_by_themselves,
]
OPTIMIZERS = [{}, {"lr": 0.0}, {"foreach": True}, {"fused": True}]


def ordinary(rank: int, keeping: str, to_none: bool, ddp: dict) -> None:
    for loop in ORDINARY:
        for options in OPTIMIZERS:
            model = Ddp(small_model(), **ddp)
            optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.01, **options})
            KEEPING[keeping](model, optimizer)
            loop(model, optimizer, rank, to_none)


@pytest.mark.parametrize("ddp", [{}, {"gradient_as_bucket_view": True}, UNUSED])
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("keeping", KEEPING)
def test_ordinary_loops_are_not_refused(keeping, to_none, ddp):
    on_ranks(2, ordinary, keeping, to_none, ddp)


def without_optimizer(rank: int) -> None:
    model = Ddp(small_model())
    optimizer = torch.optim.SGD(model.module[0].parameters(), lr=0.01)
    gradwire.torch.residual(model, optimizer, exact=["*"])
    for step in range(5):
        model.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()


def test_layers_of_no_optimizer_are_not_refused():
    on_ranks(1, without_optimizer)


def experts_that_rest(rank: int, keeping: str, ddp: dict) -> None:
    """Weights of experts change by themselves, too, also while nobody uses them."""
    model = Ddp(Experts(), **ddp)
    optimizer = sgd(model)
    KEEPING[keeping](model, optimizer)
    users = [{0, 1}, {0, 1}, {0, 1}, set(), set(), {0}, {1}, {0, 1}]
    if "static_graph" in ddp:
        users = [{0, 1}] * len(users)
    for step, of_first in enumerate(users):
        optimizer.zero_grad()
        model(of_first, factors_of(step, rank)).backward()
        optimizer.step()
        if step % 3 == 2:
            model.load_state_dict(model.state_dict())


@pytest.mark.parametrize("ddp", [UNUSED, {"static_graph": True}])
@pytest.mark.parametrize("keeping", KEEPING)
def test_layers_that_nobody_uses_are_not_refused(keeping, ddp):
    on_ranks(2, experts_that_rest, keeping, ddp)


# -------------------------------------------------------------------------------------------------
# Gradients that enter momentum twice


def first_with_momentum(rank: int) -> None:
    model = Ddp(small_model())
    optimizer = sgd(model)
    gradwire.torch.residual(model, optimizer, exact=["*"])
    zeroing_before_step(model, optimizer, rank, True)
    for without_momentum in (
        lambda: gradwire.torch.residual(model, optimizer, exact=["*"], momentum=0),
        lambda: gradwire.torch.compress(model, "grid:step=0.5"),
    ):
        without_momentum()
        for step in range(8):
            loss_of(model, rank, step).backward()
            if step % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()


def test_without_momentum_several_exchanges_for_one_step_are_no_longer_refused():
    on_ranks(1, first_with_momentum)


def never_zeroed(rank: int) -> None:
    model = Ddp(small_model())
    optimizer = torch.optim.SGD(model.module[0].parameters(), lr=0.01)
    gradwire.torch.residual(model, optimizer, exact=["*"])
    with pytest.raises(ValueError, match=r"to zero .* also of layers that no optimizer has"):
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
            with torch.no_grad():
                model.module[5].weight.mul_(0.999)


def test_gradients_of_layers_of_no_optimizer_must_be_zeroed():
    on_ranks(1, never_zeroed)


# -------------------------------------------------------------------------------------------------
# Gradients of nothing but zeros


class Adapted(nn.Module):
    """The first layer has no gradient while the second is zero, as at the start of LoRA; and a
    parameter has no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = (nn.Linear(64, 64, bias=False) for _ in "ab")
        self.none = nn.Parameter(torch.zeros(0))
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(x)) + self.none.sum()


def two_passes_of_zeros(rank: int) -> list[torch.Tensor]:
    model = Ddp(Adapted())
    every = {"layers": "*", "way": "topk:density=0.05+feedback"}
    gradwire.torch.compress(model, plan={"gradwire_plan": 1, "layers": [every]})
    optimizer = sgd(model)
    for _ in range(3):
        for _ in range(2):  # both are exchanged, and added up
            (model(torch.ones(2, 64)) - 1).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def test_zeros_that_were_exchanged_are_not_thrown_away():
    one, other = on_ranks(2, two_passes_of_zeros)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
