"""Ranks that do not do the same: who differs in what is said by all, soon."""

from __future__ import annotations

import datetime
import json
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import gradwire.torch
import gradwire_autoload as autoload
import pytest
import torch
from gradwire.torch import agreement, channels, presence, settings
from gradwire.torch._native import FsdpCompression, Plan, ShardExchange
from test_torch_ddp import small_model, train
from torch import distributed, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import on_ranks

# -------------------------------------------------------------------------------------------------
# Ranks that do not come


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("gradwire").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def told_only(rank: int, told: list[int]) -> tuple[str, list[str], float]:
    """GRADWIRE=1 was forgotten on all ranks but these."""
    if rank in told:
        os.environ["GRADWIRE"] = "1"
        autoload.autoload()
    heard, begun = Heard(), time.monotonic()
    try:
        train(Ddp(small_model()), rank, 1)
    except RuntimeError as error:
        return str(error), heard.lines, time.monotonic() - begun
    raise AssertionError("it went on")


def test_a_rank_that_was_not_told_to_compress_is_named_within_seconds():
    environment = {"GRADWIRE_CONNECT_TIMEOUT": "6"}
    said, heard, seconds = on_ranks(3, told_only, [0, 2], environment=environment)[0]
    assert said.startswith("gradwire: rank 1 did not come within 6 s: GRADWIRE=1 is not set there")
    assert [line for line in heard if "rank 0 waits for rank 1, for 6 s at most" in line]
    assert seconds < 30


@pytest.mark.parametrize(
    "given, group, seconds",
    [(None, 1800, 60), (None, 10, 10), ("5", 1800, 5), ("300", 10, 300)],
)
def test_ranks_wait_for_a_minute_unless_told_otherwise(monkeypatch, given, group, seconds):
    monkeypatch.delenv("GRADWIRE_CONNECT_TIMEOUT", raising=False)
    if given:
        monkeypatch.setenv("GRADWIRE_CONNECT_TIMEOUT", given)
    assert settings.connect_seconds(group) == seconds


def test_a_time_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("GRADWIRE_CONNECT_TIMEOUT", "-1")
    with pytest.raises(
        ValueError, match="GRADWIRE_CONNECT_TIMEOUT is -1; take a number of seconds"
    ):
        settings.connect_seconds(60)


def test_ranks_of_an_earlier_life_of_the_group_do_not_count():
    store = distributed.HashStore()
    with ThreadPoolExecutor(2) as threads:
        for _ in (1, 2):
            both = [
                threads.submit(presence.wait_for_all, store, rank, [0, 1], 60) for rank in (0, 1)
            ]
            assert [each.result() for each in both] == [None, None]
    with pytest.raises(distributed.DistBackendError, match="rank 1 did not come within 0.1 s"):
        presence.wait_for_all(store, 0, [0, 1], 0.1)


def wrong_on_one_rank(rank: int, wrap: str, wrong: dict, again: bool) -> tuple[str, float]:
    """Of rank 2. Then all begin anew."""
    model = small_model()
    model = Ddp(model) if wrap == "ddp" else fully_shard(model)
    if again:
        train(gradwire.torch.compress(model, "grid:step=0.5"), rank, 1)
    begun = time.monotonic()
    for _ in range(2):
        with pytest.raises((TypeError, ValueError, distributed.DistBackendError)) as refused:
            gradwire.torch.compress(model, **(wrong if rank == 2 else {}))
        distributed.barrier()
    with pytest.raises(ValueError, match="unknown codec"):
        gradwire.torch.compress(model, "grdi")
    seconds = time.monotonic() - begun
    train(gradwire.torch.compress(model, "grid:step=0.5"), rank, 1)
    return str(refused.value), seconds


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"codec": "grdi"}, "unknown codec 'grdi'"),
        ({"plan": "/nowhere/plan.json"}, "cannot read /nowhere/plan.json"),
        ({"feedback": True}, "feedback is no argument: write it behind a codec, as in 'sign+feed"),
    ],
)
def test_what_is_wrong_on_one_rank_alone_is_heard_on_all_at_once(wrap, wrong, reason, again):
    *others, (said, _) = on_ranks(3, wrong_on_one_rank, wrap, wrong, again)
    assert said.startswith(reason)
    for heard, seconds in others:
        assert heard == f"gradwire: rank 2 raised: {said}"
        assert seconds < 20


def wrong_in_a_mesh(rank: int, again: bool) -> tuple[str, float]:
    """On rank 3 of two replicas: rank 0 has no group with it. Then all begin anew."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = fully_shard(small_model(), mesh=mesh)
    if again:
        gradwire.torch.compress(model, "grid:step=0.5")
    begun = time.monotonic()
    with pytest.raises((ValueError, distributed.DistBackendError)) as refused:
        gradwire.torch.compress(model, "grdi" if rank == 3 else "sign")
    seconds = time.monotonic() - begun
    distributed.barrier()
    train(gradwire.torch.compress(model, "grid:step=0.5"), rank, 1)
    return str(refused.value), seconds


@pytest.mark.parametrize("again", [False, True])
def test_what_is_wrong_on_one_rank_alone_is_heard_in_all_groups(again):
    *others, (said, _) = on_ranks(4, wrong_in_a_mesh, again)
    assert said.startswith("unknown codec 'grdi'")
    for heard, seconds in others:
        assert heard == f"gradwire: rank 3 raised: {said}"
        assert seconds < 20


def unasked_on_one_rank(rank: int) -> str:
    if rank == 1:
        os.environ["GRADWIRE_CODEC"] = "grdi"
    with pytest.raises((ValueError, distributed.DistBackendError)) as refused:
        train(Ddp(small_model()), rank, 1)
    distributed.barrier()
    return str(refused.value)


def test_a_wrong_variable_of_one_rank_alone_is_heard_on_all():
    heard, said = on_ranks(2, unasked_on_one_rank, environment={"GRADWIRE": "1"})
    assert said.startswith("unknown codec 'grdi'") and heard == f"gradwire: rank 1 raised: {said}"


def second_model(rank: int, goes_on: bool) -> tuple[str, list[str], float]:
    """Rank 2 of the group compresses one model fewer than rank 1."""
    group = distributed.new_group([1, 2], timeout=datetime.timedelta(seconds=30))
    if rank == 0:
        return "", [], 0
    first = gradwire.torch.compress(Ddp(small_model(), process_group=group))
    second = Ddp(small_model(), process_group=group)
    heard, begun, said = Heard(), time.monotonic(), ""
    if rank == 1:
        with pytest.raises(distributed.DistBackendError) as refused:
            gradwire.torch.compress(second, "grid:step=0.5")
        said = str(refused.value)
    elif goes_on:
        with pytest.raises(distributed.DistBackendError):
            train(first, rank, 1)
    seconds = time.monotonic() - begun
    distributed.barrier(group)
    return said, heard.lines, seconds


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_rank_that_does_not_compress_the_second_model_is_named_within_seconds(goes_on):
    environment = {"GRADWIRE_CONNECT_TIMEOUT": "6"}
    _, (said, heard, seconds), _ = on_ranks(3, second_model, goes_on, environment=environment)
    assert said.startswith("gradwire: rank 2 did not come to compress Sequential"), said
    assert "GRADWIRE_CONNECT_TIMEOUT" in said
    assert "all_gather" not in said
    assert seconds < 20
    if not goes_on:
        assert [line for line in heard if "rank 1 waits for rank 2 to compress Sequential" in line]


# -------------------------------------------------------------------------------------------------
# Ranks that lie


def gathered(channel, numbers: list[float]) -> None:
    """As a rank sends a text, which has no say in its numbers."""
    compression = FsdpCompression(0, 0)
    compression.set_rules({1: ("", len(numbers), 0.0)}, "", Plan.parse('{"gradwire_plan": 1}'))
    exchange = ShardExchange(compression, [(1, len(numbers))])
    exchange.all_gather(channel, torch.empty(2 * len(numbers)), torch.tensor(numbers).float())


def lied_to(rank: int, length: float, letter: float) -> str:
    """Rank 1 says that its text is so long, and has this letter in it."""
    channel, mine = channels.of(None), "hello"
    said = ""
    if rank == 0:
        with pytest.raises(distributed.DistBackendError) as refused:
            channel.all_gather_text(mine)
        said = str(refused.value)
    else:
        gathered(channel, [length])
        if length == len(mine):
            gathered(channel, [letter] * len(mine))
    distributed.barrier()
    return said


def sent_something_else(rank: int) -> str:
    if rank == 1:
        agreement.json = SimpleNamespace(dumps=lambda _: "[]", loads=json.loads)
    with pytest.raises(distributed.DistBackendError) as refused:
        gradwire.torch.compress(Ddp(small_model()))
    return str(refused.value)


def test_what_is_no_settings_is_refused():
    for said in on_ranks(2, sent_something_else):
        assert said.startswith("gradwire: ranks could not compare how they compress Sequential: ")
        assert "rank 1 sent what is no settings" in said


@pytest.mark.parametrize("length", [-1, 0.5, 1e30, 2.0**24, float("nan"), float("inf")])
def test_a_length_of_a_text_that_is_none_is_refused(length):
    said, _ = on_ranks(2, lied_to, length, 0)
    assert said.startswith("gradwire: rank 1 sent a text of "), said


@pytest.mark.parametrize("letter", [-1, 0.5, 256, 1e30, float("nan")])
def test_a_letter_of_a_text_that_is_none_is_refused(letter):
    said, _ = on_ranks(2, lied_to, 5, letter)
    assert said.startswith("gradwire: rank 1 sent a text with the letter "), said


# -------------------------------------------------------------------------------------------------
# Ranks that come with something else


def otherwise(rank: int, change: dict, again: bool) -> str:
    model = Ddp(small_model())
    if again:
        gradwire.torch.compress(model, "grid:step=0.5")
        train(model, rank, 1)
    usual = {"codec": "grid:step=0.5"}
    try:
        gradwire.torch.compress(model, **(usual | change if rank == 1 else usual))
    except ValueError as error:
        return str(error)
    raise AssertionError("it went on")


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "change, words",
    [
        ({"codec": "sign"}, "rank 1 has codec=sign where rank 0 has codec=grid:step=0.5"),
        ({"exact": ["3.*"]}, "rank 1 has exact=('3.*',) where rank 0 has exact=()"),
        ({"seed": 7}, "rank 1 has seed=7 where rank 0 has seed=0"),
        ({"codec": "grid:step=0.5+feedback"}, "rank 1 has codec=grid:step=0.5+feedback where rank"),
        (
            {"codecs": {"3.*": "fp16"}},
            "rank 1 has codecs={'3.*': 'fp16'} where rank 0 has codecs={}",
        ),
    ],
)
def test_settings_that_differ_are_named_with_both_values_on_all_ranks(change, words, again):
    for said in on_ranks(3, otherwise, change, again):
        assert said.startswith("gradwire: ranks do not agree: " + words), said


def in_a_part_of_the_job(rank: int) -> str:
    group = distributed.new_group([1, 2])
    if rank == 0:
        return ""
    with pytest.raises(ValueError) as refused:
        gradwire.torch.compress(Ddp(small_model(), process_group=group), ("", "none", "sign")[rank])
    return str(refused.value)


def test_ranks_of_a_part_of_the_job_are_named_as_the_job_numbers_them():
    for said in on_ranks(3, in_a_part_of_the_job)[1:]:
        assert "rank 2 has codec=sign where rank 1 has codec=none" in said


def another_environment(rank: int) -> str:
    os.environ["GRADWIRE_CODEC"] = ("grid:step=0.5", "uniform:bits=2")[rank]
    try:
        train(Ddp(small_model()), rank, 1)
    except ValueError as error:
        return str(error)
    raise AssertionError("it went on")


def test_hosts_with_other_variables_are_named():
    for said in on_ranks(2, another_environment, environment={"GRADWIRE": "1"}):
        assert "rank 1 has codec=uniform:bits=2 where rank 0 has codec=grid:step=0.5" in said


def in_any_order(rank: int) -> None:
    patterns = ["0.*", "2.*", "3.*"]
    gradwire.torch.compress(Ddp(small_model()), exact=patterns[:: -1 if rank else 1])
    variable = ("0.*,3.*", "3.*,0.*")[rank]
    os.environ.update(GRADWIRE="1", GRADWIRE_EXACT=variable)
    train(Ddp(small_model()), rank, 1)


def test_the_order_of_exact_layers_means_nothing():
    """Sets have another one in every process."""
    on_ranks(2, in_any_order)


def another_version(rank: int) -> str:
    gradwire.__version__ = ("0.1.0", "0.2.0")[rank]
    with pytest.raises(ValueError, match=r"rank 1 has gradwire=0\.2\.0 where rank 0 .*0\.1\.0"):
        gradwire.torch.compress(Ddp(small_model()))


def test_another_version_is_named():
    on_ranks(2, another_version)


def with_residuals(rank: int, ours: int) -> None:
    model = Ddp(small_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ways = ("off", "on") if ours else ("on", "off")
    words = (
        f"rank 1 has residual compression {ways[1]} where rank 0 has residual compression "
        rf"{ways[0]} \(--residual, or gradwire.torch.residual\); give the same"
    )
    with pytest.raises(ValueError, match=words):
        if rank == ours:
            gradwire.torch.residual(model, optimizer)
        else:
            gradwire.torch.compress(model, "grid:step=0.5")


@pytest.mark.parametrize("ours", [0, 1])
def test_residual_compression_on_some_ranks_is_named(ours):
    on_ranks(2, with_residuals, ours)


class Swapped(nn.Module):
    """The same layers on all ranks, in another order."""

    def __init__(self, rank: int):
        super().__init__()
        for name in ("left", "right")[:: -1 if rank else 1]:
            self.add_module(name, nn.Linear(64, 64))


def swapped(rank: int) -> None:
    with pytest.raises(
        ValueError, match=r"rank 1 has layer 0=right\.weight .* where rank 0 has .*left"
    ):
        gradwire.torch.compress(Ddp(Swapped(rank)))


def test_layers_in_another_order_are_named():
    on_ranks(2, swapped)


def another_model(rank: int) -> None:
    """Each rank compresses its two models in an order of its own."""
    first, second = Ddp(small_model()), Ddp(nn.Sequential(nn.Linear(64, 64)))
    with pytest.raises(ValueError, match=r"rank 1 has layer 0=0\.weight \(64, 64\) of torch"):
        gradwire.torch.compress((first, second)[rank])


def test_another_model_is_named_by_its_layers():
    on_ranks(2, another_model)


def sharded_otherwise(rank: int) -> None:
    model = fully_shard(small_model())
    with pytest.raises(ValueError, match="rank 1 has weights=fp16 where rank 0 has weights=None"):
        gradwire.torch.compress(model, "grid:step=0.5", weights="fp16" if rank else None)


def test_fsdp_alike():
    on_ranks(2, sharded_otherwise)


# -------------------------------------------------------------------------------------------------
# Arguments


def objects(rank: int) -> None:
    model = Ddp(small_model())
    codec = gradwire.codec("uniform:bits=2")
    gradwire.torch.compress(model, codec, codecs={"3.*": gradwire.codec("sign")})
    train(model, rank, 1)
    codecs = {name: each.codec for name, each in gradwire.torch.stats(model).layers.items()}
    assert codecs["0.weight"] == codec.spec
    assert codecs["3.weight"].startswith("sign")
    gradwire.torch.all_reduce(torch.ones(5), codec)
    for wrong, words in [
        ({"codec": 4}, "codec is 4; give a codec's text such as 'grid:step=0.5'"),
        ({"codecs": {"3.*": None}}, r"codecs\['3\.\*'\] is None; give a codec's text"),
        ({"codecs": {5: "grid"}}, r"codecs is \{5: 'grid'\}; its keys are patterns such as"),
        ({"codecs": ["sign"]}, r"codecs is \['sign'\]; give patterns and codecs"),
        ({"exact": 3}, "exact is 3; give a list of patterns"),
        ({"exact": [3]}, r"exact is \[3\]; give a list of patterns"),
    ]:
        with pytest.raises(TypeError, match=words):
            gradwire.torch.compress(model, **wrong)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in (-1, 2**64, 2**70, 1.5, "7", None):
        words = rf"seed is {seed!r}; give a whole number from 0 to 2\*\*64 - 1"
        with pytest.raises((TypeError, ValueError), match=words):
            gradwire.torch.compress(model, "grid:step=0.5", seed=seed)
        with pytest.raises((TypeError, ValueError), match=words):
            gradwire.torch.residual(model, optimizer, seed=seed)
    for wrong in ({"warmup": 1.5}, {"warmup": "5"}, {"reuse": 1.5}):
        ((name, value),) = wrong.items()
        with pytest.raises(TypeError, match=rf"{name} is {value!r}; take a whole number"):
            gradwire.torch.residual(model, optimizer, **wrong)
    for wrong, words in [
        ({"link": 5}, "link is 5; give its rate as a text, such as '100mbit'"),
        ({"density": "x"}, "density is 'x'; give a number"),
        ({"momentum": None}, "momentum is None; give a number"),
    ]:
        with pytest.raises(TypeError, match=words):
            gradwire.torch.residual(model, optimizer, **wrong)
    for codec in ("sign+feedbak", "sign+feedback:momentum=0.9", "sign+route:snake"):
        with pytest.raises(ValueError, match="feedbak|momentum|snake"):
            gradwire.torch.compress(model, codec)
    with pytest.raises(ValueError, match="feedback needs a name"):
        gradwire.torch.all_reduce(torch.ones(3), "sign+feedback")
    gradwire.torch.compress(model, "grid:step=0.5", seed=2**64 - 1)
    with pytest.raises(TypeError, match="codec is None; give a codec's text"):
        gradwire.torch.all_reduce(torch.ones(3), None)


def test_codecs_may_be_objects_and_other_things_are_named():
    on_ranks(2, objects)


def wrapped_otherwise(rank: int) -> None:
    with pytest.raises(TypeError, match="Linear is not distributed; wrap it in Distributed"):
        gradwire.torch.compress(nn.Linear(3, 3))
    sharded = FullyShardedDataParallel(nn.Linear(3, 3), device_id=torch.device("cpu"))
    words = r"FSDP1 \(FullyShardedDataParallel\), which gradwire does not compress: use fully_shard"
    with pytest.raises(TypeError, match=words):
        gradwire.torch.compress(sharded, "grid:step=0.5")
    with pytest.raises(TypeError, match="GRADWIRE=1, which compresses models of replicate"):
        gradwire.torch.compress(replicate(nn.Linear(3, 3)))


def test_a_model_that_is_wrapped_otherwise_is_refused_with_the_way_out():
    on_ranks(2, wrapped_otherwise)
