"""What one rank may do alone with a model that all ranks train, or that none does."""

from __future__ import annotations

import copy
import gc
import os
import pickle

import gradwire.torch
import pytest
import torch
from gradwire.torch import compressions
from test_torch_ddp import batches, small_model, train
from test_torch_report import WANTED, Net, heard, is_compressed
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import digest, on_ranks

UNCHANGED = {"GRADWIRE": "1", "GRADWIRE_CONNECT_TIMEOUT": "6"}


def evaluate(model: nn.Module) -> None:
    """Without `no_grad`, as many scripts do."""
    loss_of(model.eval(), 0)


# -------------------------------------------------------------------------------------------------
# Forward passes with gradients on


def evaluates_a_copy(rank: int, explicit: bool) -> tuple[str, bool]:
    model = Ddp(small_model())
    if explicit:
        gradwire.torch.compress(model, "grid:step=0.5")
    for step in range(3):
        train(model, rank, 1, step)
        if rank == 0:
            evaluate(copy.deepcopy(model))
    return digest(model), is_compressed(model)


@pytest.mark.parametrize("explicit", [False, True])
def test_one_rank_alone_may_evaluate_a_copy_with_gradients_on(explicit):
    environment = UNCHANGED | {"GRADWIRE": "0" if explicit else "1"}
    one, other = on_ranks(2, evaluates_a_copy, explicit, environment=environment)
    assert one == other
    assert one[1]


def evaluates_another_model(rank: int) -> tuple[str, bool]:
    model, teacher = Ddp(small_model()), Ddp(small_model(1))
    for step in range(3):
        train(model, rank, 1, step)
        if rank == 0:
            evaluate(teacher)
    train(teacher, rank, 2)
    return digest(teacher), is_compressed(model) and is_compressed(teacher)


@pytest.mark.parametrize("backend", ["gloo", "gradwire"])
def test_one_rank_alone_may_evaluate_another_model_before_all_train_it(backend):
    environment = UNCHANGED | {"GRADWIRE": "1" if backend == "gloo" else "0"}
    one, other = on_ranks(2, evaluates_another_model, backend=backend, environment=environment)
    assert one == other
    assert one[1]


def numbers(rank: int) -> tuple[list[int], list[str]]:
    """Of two models that are trained, while rank 0 evaluates copies."""
    first, second = Ddp(Net()), Ddp(Net())
    with heard() as lines:
        train(first, rank, 1)
        if rank == 0:
            for _ in range(3):
                evaluate(copy.deepcopy(first))
            gc.collect()
        train(second, rank, 1)
        assert list(gradwire.torch.state_dict()["counters"]) == [0, 1]
    return [compressions.of(each).number for each in (first, second)], lines


def test_models_that_one_rank_evaluates_are_neither_counted_nor_reported():
    """By their numbers checkpoints know models."""
    (first, lines), (second, _) = on_ranks(2, numbers, environment=UNCHANGED | WANTED)
    assert first == second == [0, 1]
    assert [line.split(":")[2].split()[1] for line in lines] == ["of", "of", "steps;", "steps;"]


# -------------------------------------------------------------------------------------------------
# Settings are compared in the first exchange


def loss_of(model: nn.Module, rank: int) -> torch.Tensor:
    x, y = next(batches(rank, 1))
    return nn.functional.cross_entropy(model(x), y)


def differing(rank: int) -> str:
    os.environ["GRADWIRE_CODEC"] = ("sign", "fp16")[rank]
    model = Ddp(small_model())
    loss = loss_of(model, rank)
    with pytest.raises(ValueError) as refused:
        loss.backward()
    return str(refused.value)


def test_ranks_that_differ_raise_in_their_first_backward_pass():
    for said in on_ranks(2, differing, environment=UNCHANGED):
        assert "rank 1 has codec=fp16 where rank 0 has codec=sign" in said


def explicit_after_forward(rank: int) -> None:
    """What is asked for between the first forward pass and the first exchange counts."""
    model = Ddp(small_model())
    loss = loss_of(model, rank)
    with pytest.raises(ValueError, match="rank 1 has codec=fp16 where rank 0 has codec=none"):
        gradwire.torch.compress(model, ("none", "fp16")[rank])
    gradwire.torch.compress(model, "fp16")
    loss.backward()
    assert gradwire.torch.stats(model).layers["0.weight"].codec == "fp16"


def test_an_explicit_call_compares_at_once():
    on_ranks(2, explicit_after_forward, environment=UNCHANGED)


# -------------------------------------------------------------------------------------------------
# Models from files


def saved(rank: int) -> bytes:
    model = gradwire.torch.compress(Ddp(small_model()), "uniform:bits=4")
    train(model, rank, 1)
    return pickle.dumps(model)


def loaded(rank: int, files: list[bytes]) -> bool:
    model = pickle.loads(files[rank])
    train(model, rank, 1)
    return is_compressed(model)


def test_a_model_that_another_process_compressed_and_saved_is_compressed():
    assert on_ranks(2, loaded, on_ranks(2, saved)) == [True, True]
