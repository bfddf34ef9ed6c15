"""What `gradwire run --residual` takes over from an optimizer, and must not."""

from __future__ import annotations

import copy

import pytest
import torch
from test_torch_ddp import batches, small_model, train
from test_torch_residual import UNCHANGED
from torch import nn
from torch.distributed import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import on_ranks


def sgd(*models: nn.Module, **options) -> torch.optim.SGD:
    parameters = [parameter for model in models for parameter in model.parameters()]
    return torch.optim.SGD(parameters, lr=0.01, **options)


# -------------------------------------------------------------------------------------------------
# One optimizer of several models


def with_hook() -> Ddp:
    model = Ddp(small_model(1))
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return model


def with_builtin_hook() -> Ddp:
    model = Ddp(small_model(1))
    model._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)
    return model


def with_python_reducer() -> Ddp:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        return Ddp(small_model(1))


LEFT_ALONE = [with_hook, with_builtin_hook, with_python_reducer]


def beside_one_left_alone(rank: int, options: dict) -> None:
    for make in LEFT_ALONE:
        model, other = Ddp(small_model()), make()
        optimizer = sgd(model, other, **options)
        if not options:
            model(next(batches(rank, 1))[0])
            continue
        with pytest.raises(ValueError, match="gradwire leaves alone.*--residual"):
            model(next(batches(rank, 1))[0])
        assert optimizer.param_groups[0]["momentum"] == options["momentum"]


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"momentum": 0, "weight_decay": 0.1}, {}])
def test_a_model_that_is_left_alone_keeps_its_momentum(options):
    on_ranks(1, beside_one_left_alone, options, environment=UNCHANGED)


# -------------------------------------------------------------------------------------------------
# Checkpoints that are loaded late


def trained(rank: int) -> tuple[Ddp, torch.optim.SGD]:
    model = Ddp(small_model())
    optimizer = sgd(model, momentum=0.9)
    train(model, rank, 2, optimizer=optimizer)
    return model, optimizer


def loaded_late(rank: int, saved: dict) -> None:
    model, optimizer = trained(rank)
    optimizer.load_state_dict(saved)
    with pytest.raises(ValueError, match="load the checkpoint before the first forward pass"):
        train(model, rank, 1, optimizer=optimizer)


def saved_by_others() -> list[dict]:
    """With momentum that residuals do not know of."""
    model = small_model()
    of_script = sgd(model, momentum=0.9).state_dict()
    ours = {"momentum": 0.9, "nesterov": False, "weight_decay": 0}
    taken = copy.deepcopy(of_script)
    taken["param_groups"][0].update(momentum=0, gradwire=ours)
    buffers = copy.deepcopy(taken)
    buffers["state"] = {0: {"momentum_buffer": torch.ones_like(model[0].weight)}}
    other = copy.deepcopy(taken)
    other["param_groups"][0]["gradwire"]["momentum"] = 0.5
    again = copy.deepcopy(taken)
    again["param_groups"][0]["momentum"] = 0.9
    return [of_script, buffers, other, again]


def test_a_checkpoint_with_momentum_is_refused_after_it_was_taken_over():
    for saved in saved_by_others():
        on_ranks(1, loaded_late, saved, environment=UNCHANGED)


def rolled_back(rank: int) -> None:
    model, optimizer = trained(rank)
    saved = copy.deepcopy(optimizer.state_dict())
    train(model, rank, 2, optimizer=optimizer)
    optimizer.load_state_dict(saved)
    train(model, rank, 2, optimizer=optimizer)
    assert optimizer.param_groups[0]["momentum"] == 0


def test_an_optimizer_goes_back_to_its_own_state():
    on_ranks(2, rolled_back, environment=UNCHANGED)


def old_checkpoint(rank: int) -> None:
    """Of a torch that wrote down that there are no buffers."""
    model = Ddp(small_model())
    optimizer = sgd(model)
    saved = optimizer.state_dict()
    saved["state"] = {i: {"momentum_buffer": None} for i, _ in enumerate(model.parameters())}
    optimizer.load_state_dict(saved)
    train(model, rank, 1, optimizer=optimizer)


def test_buffers_that_are_none_are_no_momentum():
    on_ranks(1, old_checkpoint, environment=UNCHANGED)
