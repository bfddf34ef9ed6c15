"""What users see: at first what is compressed and how, at the end what was saved or why nothing."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import pickle

import gradwire.torch
import pytest
import torch
from gradwire.torch import ddp
from test_torch_ddp import Mixed, Sparse, batches, small_model, train
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import digest, on_ranks

WANTED = {"GRADWIRE": "1", "GRADWIRE_SUMMARY": "1"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small_model()

    def forward(self, x):
        return self.inner(x)


@contextlib.contextmanager
def heard():
    """Lines on stderr, those of the end as well."""
    stderr, lines = io.StringIO(), []
    with contextlib.redirect_stderr(stderr):
        yield lines
        gradwire.torch.report.at_end()
    said = stderr.getvalue().splitlines()  # with warnings of the logger
    lines.extend(line for line in said if line.startswith("gradwire: "))


# -------------------------------------------------------------------------------------------------
# First and last lines


def spoken(rank: int, arguments: dict | None) -> list[str]:
    os.environ["RANK"] = "0"  # as with mp.spawn, which sets none
    with heard() as lines:
        model = Ddp(Net())
        if arguments is not None:
            gradwire.torch.compress(model, **arguments)
        train(model, rank, 3)
    return lines


ONE_LINE = (
    "gradwire: Net: 2 of 8 layers (91 % of the gradients) travel as grid:step=0.5, the others"
)


@pytest.mark.parametrize("ranks", [2, 3])
def test_rank_0_says_what_is_compressed_and_what_that_saved(ranks):
    first, *others = on_ranks(ranks, spoken, None, environment=WANTED)
    begin, end = first
    assert begin == f"{ONE_LINE} exactly; {ranks} ranks"
    assert end.startswith("gradwire: Net: 3 steps; rank 0 sent ")
    assert end.endswith(" times less)")
    assert others == [[]] * (ranks - 1)


def test_all_codecs_are_named():
    arguments = {"codec": "sign+feedback", "codecs": {"inner.0.*": "grid:step=1+feedback"}}
    first, _ = on_ranks(2, spoken, arguments, environment=WANTED)
    assert first[0] == (
        "gradwire: Net: 1 of 8 layers (61 % of the gradients) travel as sign+feedback, "
        "1 (30 %) as grid:step=1+feedback, the others exactly; 2 ranks"
    )


def said_of_plan(rank: int, plan: dict) -> tuple[list[str], list[str]]:
    """And the ways in the table."""
    with heard() as lines:
        model = Ddp(Net())
        for _ in range(2):  # what is wrong with it is said once
            gradwire.torch.compress(model, plan=plan)
        table = str(gradwire.torch.stats(model)).splitlines()
    return lines, [row.split()[1] for row in table[1:-1]]


def test_a_route_is_shown_and_feedback_only_where_layers_have_it():
    entries = [
        {"layers": "inner.0.weight", "way": "grid:locality=0.5+route:hierarchical-exact"},
        {"layers": "inner.*", "way": "sign+feedback"},
    ]
    plan = {"gradwire_plan": 1, "layers": entries}
    (line, *_), ways = on_ranks(2, said_of_plan, plan, environment=WANTED)[0]
    assert "1 (30 %) as grid+route:hierarchical-exact; by a plan" in line
    assert set(ways) == {"grid+route:hierarchical-exact", "sign+feedback"}
    plan["layers"].insert(
        1, {"layers": "inner.[0-9]*", "way": "fp16"}
    )  # before the one with feedback
    (line, *_), ways = on_ranks(2, said_of_plan, plan, environment=WANTED)[0]
    assert "feedback" not in line and set(ways) == {"grid+route:hierarchical-exact", "fp16"}


@pytest.mark.parametrize("way", ["topk", "randomk:density=0.5", "topk+route:ring"])
def test_a_sparse_codec_without_feedback_is_warned_of_once(way):
    stages = [{"way": "none"}, {"from_step": 5, "way": way}]
    plan = {"gradwire_plan": 1, "layers": [{"layers": "inner.*", "stages": stages}]}
    (first, _), (second, _) = on_ranks(2, said_of_plan, plan, environment=WANTED)
    warnings = [line for line in first if "is lost" in line]
    assert len(warnings) == 1 and f"write {way}+feedback, or use gradwire.torch" in warnings[0]
    assert second == []


@pytest.mark.parametrize("way", ["topk+feedback", "randomk:scale=inverse", "sign"])
def test_other_codecs_are_not_warned_of(way):
    plan = {"gradwire_plan": 1, "default": {"way": way}}
    assert "is lost" not in str(on_ranks(2, said_of_plan, plan, environment=WANTED))


def test_layers_that_are_all_exact_are_a_reason():
    first, _ = on_ranks(2, spoken, {"exact": ["*"]}, environment=WANTED)
    assert first[0] == "gradwire: Net: all 8 layers travel exactly; 2 ranks"
    assert first[1].endswith("nothing was compressed, because all layers travel exactly")


def test_one_rank_is_a_reason():
    ((first, last),) = on_ranks(1, spoken, None, environment=WANTED)
    assert first == f"{ONE_LINE} exactly; one rank"
    assert last == "gradwire: Net: nothing was compressed, because there is one rank"


def logged(rank: int) -> list[str]:
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("gradwire").addHandler(handler)
    logging.getLogger("gradwire").setLevel(logging.INFO)
    gradwire.torch.compress(Ddp(Net()), "grid:step=0.5")
    return lines


def test_the_logger_says_it_where_it_shows_information():
    assert on_ranks(2, logged) == [[f"{ONE_LINE} exactly; 2 ranks"], []]


# -------------------------------------------------------------------------------------------------
# Why nothing


def without_backward(rank: int) -> None:
    Ddp(Net())


def trained(rank: int) -> None:
    train(Ddp(Net()), rank, 1)


def with_hook(rank: int) -> None:
    model = Ddp(Net())
    model._register_builtin_comm_hook(distributed.BuiltinCommHookType.FP16_COMPRESS)
    train(model, rank, 1)


def by_fsdp1(rank: int) -> None:
    train(FullyShardedDataParallel(Net(), device_id=torch.device("cpu")), rank, 1)


def reasons(rank: int, script: str) -> list[str]:
    with heard() as lines:
        globals()[script](rank)
    return lines


@pytest.mark.parametrize(
    "script, why",
    [
        ("without_backward", "no model in DistributedDataParallel or fully_shard ran a backward"),
        ("with_hook", "Net has a communication hook of its own"),
        ("by_fsdp1", "the script uses FSDP1 (FullyShardedDataParallel), which gradwire does not"),
    ],
)
def test_a_script_that_is_not_compressed_hears_why(script, why):
    ((line,), other) = on_ranks(2, reasons, script, environment=WANTED)
    assert line.startswith(f"gradwire: nothing was compressed, because {why}"), line
    assert other == []


def test_a_backend_for_another_device_is_the_reason():
    backend = "cpu:gloo,cuda:gradwire"
    environment = {"GRADWIRE_SUMMARY": "1"}
    ((line,), _) = on_ranks(2, reasons, "trained", backend=backend, environment=environment)
    why = (
        'Net has its parameters on the CPU, which gloo has in this group: write "cpu:gradwire", too'
    )
    assert line == f"gradwire: nothing was compressed, because {why}"


# -------------------------------------------------------------------------------------------------
# Models that were not compressed, without a word


def is_compressed(model: nn.Module) -> bool:
    try:
        return gradwire.torch.stats(model).ratio > 2
    except ValueError:
        return False


def on_this_backend(rank: int) -> bool:
    model = Ddp(Net())
    train(model, rank, 2)
    distributed.monitored_barrier()
    return is_compressed(model)


@pytest.mark.parametrize("backend", ["gradwire", "cpu:gradwire"])
def test_the_backend_may_be_named_with_its_device(backend):
    assert on_ranks(2, on_this_backend, backend=backend) == [True, True]


def copied(rank: int, way: str, explicit: bool, when: str) -> tuple[str, bool]:
    model = Ddp(Net())
    if explicit:
        gradwire.torch.compress(model, "uniform:bits=4", exact=["inner.0.*"])
    if when == "after":
        train(model, rank, 2)
    twin = copy.deepcopy(model) if way == "copy" else pickle.loads(pickle.dumps(model))
    train(twin, rank, 2)
    if explicit:
        layers = gradwire.torch.stats(twin).layers
        assert layers["inner.0.weight"].codec == "none"
        assert layers["inner.3.weight"].codec.startswith("uniform:bits=4")
    return digest(twin), is_compressed(twin)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("way", ["copy", "pickle"])
def test_a_copy_is_compressed_as_its_original(way, explicit, when):
    environment = {"GRADWIRE": "0" if explicit else "1"}
    one, other = on_ranks(2, copied, way, explicit, when, environment=environment)
    assert one == other
    assert one[1]


def saved_model(rank: int, feedback: bool, earlier: bool) -> bytes:
    """By a version in which feedback was a setting for all layers, or by this one."""
    added = "+feedback" if feedback and not earlier else ""
    model = Ddp(Net())
    codecs = {"inner.0.*": f"uniform:bits=4{added}"}
    gradwire.torch.compress(model, f"sign{added}", codecs=codecs)
    if earlier:
        kept = model.__dict__[ddp._KEPT]
        del kept["plan"]
        kept["feedback"] = feedback
    return pickle.dumps(model)


def loaded_model(rank: int, files: list[bytes]) -> tuple[str, str]:
    model = pickle.loads(files[rank])
    train(model, rank, 4)
    return digest(model), gradwire.torch.plan(model).json()


@pytest.mark.parametrize("feedback", [False, True])
def test_a_model_that_an_earlier_version_saved_is_compressed_alike(feedback):
    old, new = (
        on_ranks(2, loaded_model, on_ranks(2, saved_model, feedback, earlier))
        for earlier in (True, False)
    )
    assert old == new
    assert ("+feedback" in old[0][1]) == feedback


def copied_with_residuals(rank: int, explicit: bool) -> list[str]:
    """Its momentum is in the residuals, or in the optimizer: not in both."""
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger("gradwire").addHandler(handler)
    model = Ddp(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0 if explicit else 0.9)
    if explicit:
        gradwire.torch.residual(model, optimizer, density=0.1)
    train(model, rank, 2, optimizer=optimizer)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin(torch.zeros(1, 32))  # needs no optimizer
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    train(twin, rank, 2, optimizer=optimizer)
    assert optimizer.param_groups[0]["momentum"] == (0.9 if explicit else 0)
    return heard


def test_a_copy_of_a_model_with_residuals_is_not_given_momentum_twice():
    heard, _ = on_ranks(2, copied_with_residuals, True)
    assert "copy of a model with residual compression, and trains exactly" in heard[0]
    environment = {"GRADWIRE": "1", "GRADWIRE_RESIDUAL": "0.1"}
    assert on_ranks(2, copied_with_residuals, False, environment=environment) == [[], []]


def evaluated_first(rank: int) -> bool:
    model = Ddp(Net(), broadcast_buffers=False)
    if rank == 0:
        with torch.no_grad():
            model(torch.zeros(1, 32))
    distributed.barrier()  # for which no other rank waits in vain
    train(model, rank, 2)
    return is_compressed(model)


def test_one_rank_alone_may_evaluate_a_model_first():
    assert on_ranks(2, evaluated_first, environment={"GRADWIRE": "1"}) == [True, True]


def compiled(rank: int) -> None:
    inside = torch.compile(Ddp(Net()), backend="eager")
    assert gradwire.torch.compress(inside, "grid:step=0.5", exact=["inner.0.*"]) is inside
    train(inside, rank, 2)
    assert is_compressed(inside)
    outside = Ddp(torch.compile(Net(), backend="eager"))
    gradwire.torch.compress(outside, "grid:step=0.5", exact=["inner.0.*"])
    train(outside, rank, 2)
    names = [name for name, _ in Net().named_parameters()]
    assert list(gradwire.torch.stats(outside).layers) == sorted(names)
    assert gradwire.torch.stats(outside).who.model == "Net"
    optimizer = torch.optim.SGD(inside.parameters(), lr=0.1)
    assert gradwire.torch.residual(inside, optimizer, density=0.01) is inside
    sharded = torch.compile(fully_shard(Net()), backend="eager")
    gradwire.torch.compress(sharded, "grid:step=0.5")
    assert gradwire.torch.stats(sharded).who.model == "Net"


def test_compiled_models_have_the_names_of_their_authors():
    on_ranks(2, compiled)


# -------------------------------------------------------------------------------------------------
# Patterns of the environment


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.outer = small_model()

    def forward(self, x):
        return self.outer(x)


def two_models(rank: int, both: bool) -> tuple[list[str], list[str]]:
    warnings = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("gradwire").addHandler(handler)
    with heard() as lines:
        for kind in (Net, Other) if both else (Net,):
            train(Ddp(kind()), rank, 1)
    return lines, warnings


def test_a_pattern_that_matches_nothing_is_said():
    environment = WANTED | {"GRADWIRE_EXACT": "outer.*"}
    (lines, warnings), (_, none) = on_ranks(2, two_models, False, environment=environment)
    assert "no layer of Net matches 'outer.*' of --exact or GRADWIRE_EXACT" in warnings[0]
    assert "for instance, inner.0.weight" in warnings[0]
    assert none == []
    assert lines[-1].startswith("gradwire: no layer of any model matched 'outer.*'")
    # Meant for the second of two models, it is right.
    (lines, warnings), _ = on_ranks(2, two_models, True, environment=environment)
    assert len(warnings) == 1
    assert [line.split(":")[1] for line in lines] == [" Net", " Other", " Net", " Other"]
    assert "all 8 layers travel exactly" in lines[1]


# -------------------------------------------------------------------------------------------------
# Layers that go around the codecs


def around(rank: int, kind: str) -> gradwire.torch.Stats:
    model = gradwire.torch.compress(Ddp({"Mixed": Mixed, "Sparse": Sparse}[kind]()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(rank, 2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return gradwire.torch.stats(model)


def test_what_no_codec_takes_is_counted_as_exact():
    stats = on_ranks(2, around, "Mixed")[0]
    fine = stats.layers["fine.weight"]
    assert fine.codec == "none"
    assert fine.bytes == fine.sent_bytes == 2 * 64 * 64 * 8
    assert stats.sent_bytes > fine.sent_bytes
    words = on_ranks(2, around, "Sparse")[0].layers["words.weight"]
    assert words.codec == "none"
    assert words.bytes == words.sent_bytes > 0


def frozen(rank: int) -> list[str]:
    model = Net()
    model.inner[0].requires_grad_(False)
    model = gradwire.torch.compress(Ddp(model))
    train(model, rank, 1)
    return list(gradwire.torch.stats(model).layers)


def test_frozen_layers_are_left_out():
    assert "inner.0.weight" not in on_ranks(2, frozen)[0]


# -------------------------------------------------------------------------------------------------
# A run that goes on


def goes_on(rank: int, states: list | None, steps_before: int) -> tuple[list[str], tuple, dict]:
    with heard() as lines:
        model = gradwire.torch.compress(Ddp(Net()))
        train(model, rank, steps_before)
        if states:
            gradwire.torch.load_state_dict(states[rank])
        train(model, rank, 2)
    found = gradwire.torch.stats(model)
    return lines, (found.steps, found.bytes), gradwire.torch.state_dict()


@pytest.mark.parametrize("steps_before", [0, 1])
def test_steps_and_bytes_are_those_of_one_run(steps_before):
    begun = on_ranks(2, goes_on, None, 3)
    states = [state for *_, state in begun]
    environment = {"GRADWIRE_SUMMARY": "1"}
    lines, (steps, bytes_), state = on_ranks(
        2, goes_on, states, steps_before, environment=environment
    )[0]
    assert state["counters"] == {0: 5 + 2}  # on which random numbers depend
    assert steps == steps_before + 2
    assert bytes_ / steps == begun[0][1][1] / begun[0][1][0]
    assert lines[-1].startswith(f"gradwire: Net: {steps} steps; ")
