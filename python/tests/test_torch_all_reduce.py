"""Calls of `gradwire.torch.all_reduce` are counted by name and group, whatever else is reduced."""

from __future__ import annotations

import datetime

import gradwire.torch
import numpy
import pytest
import torch
from torch import distributed
from torch_ranks import on_ranks

ROUGH = "uniform:bits=1"


def reduced(name: str, codec: str = ROUGH, group=None) -> torch.Tensor:
    tensor = torch.linspace(-1, 1, 3001)
    gradwire.torch.all_reduce(tensor, codec, name=name, group=group)
    return tensor


def signs_in_turn(rank: int) -> list[set[float]]:
    """Of what two tensors receive that are reduced one after the other."""
    signs: list[set[float]] = [set(), set()]
    for _ in range(4):
        for seen, name in zip(signs, "ab", strict=True):
            total = reduced(name, "topk:density=0.01,values=mean")
            seen |= set(total[total != 0].sign().tolist())
    return signs


def test_each_of_two_tensors_sends_both_signs():
    for signs in on_ranks(2, signs_in_turn):
        assert signs == [{-1.0, 1.0}, {-1.0, 1.0}]


def in_turn_with(rank: int, others: list[str], groups: bool) -> list[torch.Tensor]:
    """What one tensor receives in four calls, with calls for others between."""
    group = distributed.new_group()
    received = []
    for _ in range(4):
        received.append(reduced("one"))
        for name in others:
            reduced(name)
        if groups:
            reduced("one", group=group)
    return received


def test_random_numbers_do_not_depend_on_other_tensors_or_groups():
    alone = on_ranks(2, in_turn_with, [], False)[0]
    assert not torch.equal(alone[0], alone[1])
    for others, groups in ((["another", ""], False), ([], True)):
        together = on_ranks(2, in_turn_with, others, groups)[0]
        assert all(map(torch.equal, together, alone))


def goes_on(rank: int, states: list | None) -> tuple[list[torch.Tensor], dict]:
    if states:
        gradwire.torch.load_state_dict(states[rank])
    group = distributed.new_group()
    received = []
    for _ in range(2):
        received += [reduced("a"), reduced(""), reduced("a", group=group), reduced("b")]
        reduced("b")
    return received, gradwire.torch.state_dict()


def test_counters_are_in_the_state():
    begun = on_ranks(2, goes_on, None)
    assert begun[0][1]["calls"] == {0: {"/a": 2, "/": 2, "/b": 4}, 1: {"/a": 2}}
    resumed = on_ranks(2, goes_on, [state for _, state in begun])
    assert resumed[0][1]["calls"] == {0: {"/a": 4, "/": 4, "/b": 8}, 1: {"/a": 4}}
    for earlier, later in zip(begun[0][0], resumed[0][0], strict=True):
        assert not torch.equal(earlier, later)


def goes_on_from(rank: int, states: list[dict]) -> str:
    gradwire.torch.load_state_dict(states[rank])
    with pytest.raises(ValueError) as refused:
        reduced("a")
    return str(refused.value)


def calls_by_step(rank: int) -> list[dict]:
    states = []
    for _ in range(2):
        reduced("a")
        states.append(gradwire.torch.state_dict())
    return states


def test_ranks_with_checkpoints_of_different_steps_are_named():
    saved = on_ranks(3, calls_by_step)
    for said in on_ranks(3, goes_on_from, [saved[0][1], saved[1][0], saved[2][1]]):
        words = "rank 1 has made 1 calls of all_reduce with the name 'a' where rank 0 has made 2"
        assert said.startswith(f"gradwire: ranks do not agree: {words}; load checkpoints"), said


def in_a_group_of_others(rank: int) -> None:
    group = distributed.new_group([0])
    if rank == 0:
        reduced("", group=group)
        return
    with pytest.raises(ValueError, match="this rank is not in the group; only its ranks make this"):
        reduced("", group=group)


def test_a_rank_that_is_not_in_the_group_is_told():
    on_ranks(2, in_a_group_of_others)


def with_momentum(rank: int) -> list[list[float]]:
    """What comes of ones, call by call."""
    received = {"exact": [], "sparse": []}
    ways = ("none+feedback:momentum=0.5", "topk:density=0.25,select=exact+feedback:momentum=0.5")
    for _ in range(4):
        for (name, sums), way in zip(received.items(), ways, strict=True):
            tensor = torch.tensor([1.0, 2.0, 3.0, 4.0])
            gradwire.torch.all_reduce(tensor, way, name=name)
            sums.append(tensor.tolist())
    return list(received.values())


def test_momentum_is_that_of_the_gradients_also_of_what_is_held_back():
    """As SGD has it: the momentum m becomes m / 2 + g, and what is not sent grows by it."""
    for exact, sparse in on_ranks(2, with_momentum):
        assert [sums[3] for sums in exact] == [8, 12, 14, 15]
        assert sum(1 for sums in sparse for each in sums if each) == 4
        assert sparse[0] == [0, 0, 0, 8]
        assert sparse[1] in ([0, 0, 15, 0], [0, 0, 0, 12])


def with_a_wrong_group(rank: int) -> None:
    with pytest.raises(TypeError, match="group is 5; give what torch.distributed.new_group"):
        gradwire.torch.all_reduce(torch.ones(3), group=5)


def test_a_group_that_is_none_is_refused():
    on_ranks(1, with_a_wrong_group)


def test_wrong_arguments_are_refused_with_a_sentence():
    with pytest.raises(TypeError, match="takes a torch.Tensor, and this is ndarray"):
        gradwire.torch.all_reduce(numpy.ones(3, "float32"))
    with pytest.raises(TypeError, match="state is None; give what gradwire.torch.state_dict"):
        gradwire.torch.load_state_dict(None)


def leaves_the_other_waiting(rank: int) -> str:
    group = distributed.new_group([1, 2], timeout=datetime.timedelta(seconds=3))
    said = ""
    if rank > 0:
        reduced("a", group=group)  # They have met.
    if rank == 1:
        with pytest.raises(distributed.DistBackendError) as refused:
            reduced("b", group=group)
        said = str(refused.value)
    distributed.barrier()
    return said


def test_an_error_in_a_group_names_the_rank_of_the_job():
    _, said, _ = on_ranks(3, leaves_the_other_waiting)
    assert "rank 1 held up all_reduce" in said
    assert said.endswith("(rank 1 of this group is rank 2 of the job)")
