"""States that are loaded where they do not belong: who differs in what is said by all, soon."""

from __future__ import annotations

import gradwire.torch
import pytest
import torch
from gradwire.torch import agreement
from test_torch_agreement import Heard
from test_torch_ddp import small_model, train
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import on_ranks


def saved(rank: int):
    model = gradwire.torch.compress(Ddp(small_model()), "sign+feedback")
    train(model, rank, 2)
    return gradwire.torch.state_dict()


def loaded(rank: int, states) -> str:
    distributed.barrier()  # gloo connects; nobody may leave meanwhile
    heard = Heard()
    try:
        gradwire.torch.load_state_dict(states[min(rank, len(states) - 1)])
    except ValueError as error:
        return str(error)
    return " ".join(heard.lines)


def test_a_state_of_other_ranks_is_refused():
    states = on_ranks(2, saved)
    assert on_ranks(2, loaded, states) == ["", ""]
    (first, second) = on_ranks(2, loaded, states[1:])
    assert "is of rank 1 of 2, and this is rank 0 of 2" in first
    assert second == ""
    for rank, said in enumerate(on_ranks(3, loaded, states)):
        assert f"is of rank {min(rank, 1)} of 2, and this is rank {rank} of 3" in said
        assert "gradwire.torch.reshard([all states], rank, ranks)" in said
    more = [gradwire.torch.reshard(states, rank, 3) for rank in range(3)]
    assert on_ranks(3, loaded, more) == ["", "", ""]
    with pytest.raises(ValueError, match="state 0 of 2 is of rank 1 of 2"):
        gradwire.torch.reshard(states[::-1], 0, 3)
    with pytest.raises(ValueError, match="state 0 of 1 is of rank 0 of 2"):
        gradwire.torch.reshard(states[:1], 0, 3)


def test_a_state_of_another_version_is_refused():
    old = [{**state, "version": 1} for state in on_ranks(2, saved)]
    for said in on_ranks(2, loaded, old):
        assert "this state has version 1; only 2 is known" in said


def with_another_size(rank: int, states) -> list[str]:
    """A layer that is not as it was, and a tensor."""
    gradwire.torch.load_state_dict(states[rank])
    wider = nn.Sequential(nn.Linear(32, 100))
    model, said = gradwire.torch.compress(Ddp(wider), "sign+feedback"), []
    with pytest.raises((RuntimeError, ValueError)) as refused:
        model(torch.randn(16, 32)).sum().backward()
    said.append(str(refused.value))
    gradwire.torch.all_reduce(torch.ones(300), "sign+feedback", name="x")
    with pytest.raises(ValueError) as refused:
        gradwire.torch.all_reduce(torch.ones(200), "sign+feedback", name="x")
    return [*said, str(refused.value)]


def test_a_layer_that_does_not_fit_its_state_is_called_as_the_model_does():
    for layer, tensor in on_ranks(2, with_another_size, on_ranks(2, saved)):
        assert layer.startswith("tensor '0.weight' has 3200 elements and had 3072 before"), layer
        assert tensor.startswith("tensor 'x' has 200 elements and had 300 before"), tensor


def states_by_step(rank: int) -> list[dict]:
    """After one step, two, and three."""
    model, states = gradwire.torch.compress(Ddp(small_model())), []
    for _ in range(3):
        train(model, rank, 1)
        states.append(gradwire.torch.state_dict())
    return states


def at_another_step(rank: int, states, when: str) -> str:
    """The second rank loads a checkpoint that is two steps older, or none."""
    old = rank == 1
    model = Ddp(small_model())
    if when == "before":
        gradwire.torch.load_state_dict(states[rank][0 if old else 2])
    if when != "unchanged":
        gradwire.torch.compress(model, "grid:step=0.5")
    if when == "later":
        train(model, rank, 2)
    if when != "before" and not (old and when == "not loaded"):
        gradwire.torch.load_state_dict(states[rank][0 if old else 2])
    with pytest.raises(ValueError) as refused:
        train(model, rank, 1)
    return str(refused.value)


@pytest.mark.parametrize("when", ["before", "after", "later", "not loaded", "unchanged"])
def test_ranks_at_different_steps_are_named_on_all_ranks(when):
    states = on_ranks(3, states_by_step)
    environment = {"GRADWIRE": "1" if when == "unchanged" else "0"}
    for said in on_ranks(3, at_another_step, states, when, environment=environment):
        step = 0 if when == "not loaded" else 1
        words = f"ranks do not agree: rank 1 is at step {step} where rank 0 is at step 3"
        assert said.startswith(f"gradwire: {words} of Sequential; load checkpoints"), said


def loaded_by_one(rank: int, states) -> str:
    """In the middle of a training, which the others go on with."""
    model = gradwire.torch.compress(Ddp(small_model()))
    train(model, rank, 1)
    if rank == 1:
        gradwire.torch.load_state_dict(states[rank][2])
    with pytest.raises(distributed.DistBackendError) as refused:
        train(model, rank, 1)
    return str(refused.value)


def test_a_rank_that_loads_alone_is_told_so():
    first, second = on_ranks(2, loaded_by_one, on_ranks(2, states_by_step))
    assert "load_state_dict on all ranks" in second, second
    assert "rank 1 is at step 3 and, before it loaded a checkpoint, was at step 1, where" in second


def in_a_mesh(rank: int) -> str:
    """Ranks 0 to 3 in two rows and two columns, of which the last is at another step."""
    rows = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
    columns = [distributed.new_group([0, 2]), distributed.new_group([1, 3])]
    with pytest.raises(ValueError) as refused:
        agreement.check_steps(
            [rows[rank // 2], columns[rank % 2]], "Net", 9 if rank == 3 else 7, 0, ""
        )
    return str(refused.value)


def test_all_ranks_of_a_mesh_hear_of_another_step():
    for said in on_ranks(4, in_a_mesh):
        assert "do not agree: rank 3 is at step 9 where rank " in said
        assert " is at step 7 of Net; load checkpoints" in said


def gathers_of(rank: int) -> int:
    """Comparisons in three steps."""
    made = []
    compare = agreement.check_steps
    agreement.check_steps = lambda *arguments: made.append(compare(*arguments))
    model = gradwire.torch.compress(Ddp(small_model()))
    train(model, rank, 3)
    return len(made)


def test_steps_are_compared_once():
    assert on_ranks(2, gathers_of) == [1, 1]
