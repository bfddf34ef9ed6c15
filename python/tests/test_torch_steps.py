"""Steps of optimizers whose momentum residuals have."""

from __future__ import annotations

import copy
from collections.abc import Callable

import gradwire.torch
import pytest
import torch
from test_torch_ddp import batches, small_model, train
from test_torch_report import heard
from test_torch_residual import UNCHANGED, Wrapper, wide_model
from test_torch_taken_over import LEFT_ALONE, sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import on_ranks

DECAY = {"momentum": 0.9, "weight_decay": 0.01}


def with_residuals(
    rank: int, by_script: bool, options: dict | None = None
) -> tuple[Ddp, torch.optim.SGD]:
    """After two steps."""
    model = Ddp(small_model())
    options = DECAY if options is None else options
    optimizer = sgd(model, **({} if by_script else options))
    if by_script:
        gradwire.torch.residual(model, optimizer, exact=["*"], **options)
    train(model, rank, 2, optimizer=optimizer)
    return model, optimizer


def on_one_rank(by_script: bool, function: Callable, *args) -> None:
    on_ranks(1, function, by_script, *args, environment=None if by_script else UNCHANGED)


# -------------------------------------------------------------------------------------------------
# An optimizer that gets its momentum back


def of_dense_run() -> dict:
    model = small_model()
    optimizer = sgd(model, momentum=0.9)
    train(model, 0, 2, optimizer=optimizer)
    return optimizer.state_dict()


def load(optimizer: torch.optim.SGD) -> None:
    optimizer.load_state_dict(of_dense_run())


def load_buffers(optimizer: torch.optim.SGD) -> None:
    saved = optimizer.state_dict()
    optimizer.load_state_dict({**saved, "state": of_dense_run()["state"]})


def schedule(optimizer: torch.optim.SGD) -> None:
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)


def assign(key: str, value: float | bool) -> Callable[[torch.optim.SGD], None]:
    return lambda optimizer: optimizer.param_groups[0].update({key: value})


AGAIN = {
    "checkpoint": (load, "momentum"),
    "buffers": (load_buffers, "momentum buffers"),
    "schedule": (schedule, "cycle_momentum"),
    "momentum": (assign("momentum", 0.9), "momentum"),
    "weight decay": (assign("weight_decay", 0.1), "weight.decay"),
    "dampening": (assign("dampening", 0.1), "dampening"),
    "maximize": (assign("maximize", True), "maximizes"),
}


def gets_it_back(rank: int, by_script: bool, way: str) -> None:
    model, optimizer = with_residuals(rank, by_script)
    again, reason = AGAIN[way]
    again(optimizer)
    before = copy.deepcopy(model.module.state_dict())
    with pytest.raises((TypeError, ValueError), match=reason):
        train(model, rank, 1, optimizer=optimizer)
    for name, each in model.module.state_dict().items():
        assert torch.equal(each, before[name])


@pytest.mark.parametrize("way", AGAIN)
@pytest.mark.parametrize("by_script", [True, False])
def test_an_optimizer_that_gets_its_momentum_back_makes_no_step(by_script, way):
    on_one_rank(by_script, gets_it_back, way)


def sets_it_right(rank: int, by_script: bool) -> None:
    model, optimizer = with_residuals(rank, by_script)
    own = copy.deepcopy(optimizer.param_groups[0])
    load(optimizer)
    schedule(optimizer)
    optimizer.state.clear()
    optimizer.param_groups[0].update({key: own[key] for key in own if key != "params"})
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9, cycle_momentum=False)
    train(model, rank, 2, optimizer=optimizer)


@pytest.mark.parametrize("by_script", [True, False])
def test_an_optimizer_may_load_what_is_set_right_before_its_step(by_script):
    on_one_rank(by_script, sets_it_right)


def has_it_alone(rank: int) -> None:
    """As it may if residuals have none."""
    model, optimizer = with_residuals(rank, True, {"momentum": 0})
    optimizer.param_groups[0].update(DECAY)
    train(model, rank, 3, optimizer=optimizer)
    gradwire.torch.residual(model, optimizer, exact=["*"], momentum=0)
    train(model, rank, 3, optimizer=optimizer)
    optimizer.param_groups[0]["momentum"] = 0
    with pytest.raises(ValueError, match=r"momentum buffers.*optimizer\.state\.clear\(\)"):
        gradwire.torch.residual(model, optimizer, exact=["*"])


def test_an_optimizer_may_have_the_momentum_that_residuals_have_not():
    on_ranks(1, has_it_alone)


# -------------------------------------------------------------------------------------------------
# Another optimizer

OTHERS = {
    "SGD": lambda model: sgd(model, momentum=0.9),
    "Adam": lambda model: torch.optim.Adam(model.parameters()),
    "of one layer": lambda model: sgd(model.module[3], momentum=0.9),
}


def by_another(rank: int, by_script: bool, kind: str) -> None:
    model, optimizer = with_residuals(rank, by_script)
    other = OTHERS[kind](model)
    with pytest.raises(ValueError, match=f"{type(other).__name__} .*another optimizer"):
        train(model, rank, 1, optimizer=other)
    train(model, rank, 1, optimizer=optimizer)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("by_script", [True, False])
def test_another_optimizer_makes_no_step(by_script, kind):
    on_one_rank(by_script, by_another, kind)


class Around(Wrapper):
    """A wrapper whose own steps have hooks, as some have."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        torch.optim.Optimizer.__init__(self, [nn.Parameter(torch.ones(1))], {})
        super().__init__(optimizer)

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        pass

    def add_param_group(self, group):
        pass

    def step(self, closure=None):
        return self.optimizer.step(closure)


def by_its_own(rank: int, by_script: bool) -> None:
    model, optimizer = with_residuals(rank, by_script)
    train(model, rank, 2, optimizer=Around(optimizer))
    model.module[0].requires_grad_(False)
    other = small_model(1)
    train(other, rank, 2, optimizer=torch.optim.Adam([*other.parameters(), model.module[0].weight]))


@pytest.mark.parametrize("by_script", [True, False])
def test_wrappers_and_optimizers_of_others_make_steps(by_script):
    on_one_rank(by_script, by_its_own)


def changes_it(rank: int) -> None:
    model, optimizer = with_residuals(rank, True)
    second = sgd(model)
    gradwire.torch.residual(model, second, exact=["*"])
    train(model, rank, 2, optimizer=second)
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(ValueError, match="another optimizer"):
        optimizer.step()
    model = Ddp(model.module)
    train(model, rank, 2)


def test_residual_may_be_given_another_optimizer():
    on_ranks(1, changes_it)


# -------------------------------------------------------------------------------------------------
# Other parameters


def of_others(rank: int) -> None:
    extra, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2), requires_grad=False)
    left_alone = [make() for make in LEFT_ALONE]
    for parameters, reason in [
        ([extra], "none of the model's parameters"),
        (list(small_model().parameters()), "none of the model's parameters"),
        ([extra, None], "in no DistributedDataParallel model"),
        *(([*each.parameters(), None], "gradwire leaves alone") for each in left_alone),
        ([frozen, None], None),
    ]:
        model = Ddp(small_model())
        ours = list(model.parameters()) if None in parameters else []
        optimizer = torch.optim.SGD([*ours, *(p for p in parameters if p is not None)], lr=0.01)
        if reason is None:
            gradwire.torch.residual(model, optimizer, exact=["*"])
            train(model, rank, 2, optimizer=optimizer)
            continue
        with pytest.raises(ValueError, match=reason) as error:
            gradwire.torch.residual(model, optimizer, exact=["*"])
        assert "--residual" not in str(error.value)
        if ours:  # which lack nothing
            gradwire.torch.residual(model, optimizer, exact=["*"], momentum=0)


def test_residual_refuses_an_optimizer_of_other_parameters():
    on_ranks(1, of_others)


def step_of_both(models: list[Ddp], optimizer: torch.optim.SGD, rank: int) -> None:
    optimizer.zero_grad()
    (x, y) = next(batches(rank, 1))
    sum(nn.functional.cross_entropy(model(x), y) for model in models).backward()
    optimizer.step()


def shared(rank: int, both: bool) -> None:
    models = [Ddp(small_model(seed)) for seed in (0, 1)]
    optimizer = sgd(*models)
    gradwire.torch.residual(models[0], optimizer, exact=["*"])
    train(models[0], rank, 2, optimizer=optimizer)  # so the other one has no gradients
    if both:
        gradwire.torch.residual(models[1], optimizer, exact=["*"])
        for _ in range(3):
            step_of_both(models, optimizer, rank)
        return
    with pytest.raises(ValueError, match="without momentum and weight decay"):
        step_of_both(models, optimizer, rank)


@pytest.mark.parametrize("both", [True, False])
def test_two_models_share_an_optimizer_if_both_are_residual(both):
    on_ranks(2, shared, both)


# -------------------------------------------------------------------------------------------------
# Back to compression without momentum


def compressed_again(rank: int, by_script: bool, options: dict) -> None:
    model, optimizer = with_residuals(rank, by_script, options)
    if any(options.values()):
        with pytest.raises(ValueError, match=r"keep gradwire\.torch\.residual"):
            gradwire.torch.compress(model, "grid:step=0.5")
        train(model, rank, 2, optimizer=optimizer)
        return
    gradwire.torch.compress(model, "grid:step=0.5")
    train(model, rank, 2)  # by another optimizer


@pytest.mark.parametrize(
    "options", [{"momentum": 0.9}, {"momentum": 0, "weight_decay": 0.1}, {"momentum": 0}]
)
@pytest.mark.parametrize("by_script", [True, False])
def test_compress_does_not_drop_the_momentum_of_residuals(by_script, options):
    on_one_rank(by_script, compressed_again, options)


# -------------------------------------------------------------------------------------------------
# What is said


def twice(rank: int) -> None:
    model = Ddp(small_model())
    optimizer = sgd(model)
    gradwire.torch.residual(model, optimizer, exact=["*"])
    with pytest.raises(ValueError, match=r"gradwire: \d\.(weight|bias) got several gradients"):
        for x, _ in batches(rank, 4):
            model(x).sum().backward()
            model(x).sum().backward()
            optimizer.step()


def test_messages_name_layers_as_their_author_does():
    on_ranks(1, twice)


def said_at_first(rank: int, large: bool, options: dict) -> str:
    with heard() as lines:
        model = Ddp(wide_model() if large else small_model())
        optimizer = sgd(model)
        gradwire.torch.residual(model, optimizer, density=0.01, warmup=3, **options)
        train(model, rank, 1, optimizer=optimizer)
    return lines[0] if rank == 0 else ""


@pytest.mark.parametrize(
    "large, options, said",
    [
        (True, {}, None),
        (False, {}, "no layer has 16384 numbers, so residual compression takes none"),
        (True, {"exact": ["*"]}, "residual compression takes no layer"),
        (True, {"link": "900gbit", "small": "none"}, "residual compression takes no layer"),
    ],
)
def test_the_first_line_says_if_no_layer_is_sent_sparsely(large, options, said):
    line, _ = on_ranks(2, said_at_first, large, options, environment={"GRADWIRE_SUMMARY": "1"})
    assert (f"; {said}" in line) if said else ("takes no" not in line)
