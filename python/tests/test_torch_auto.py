"""The automatic plan: gradients travel as steps are shortest, and nobody says how."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import time

import gradwire.torch
import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import digest, on_ranks

STEPS = 130  # of trainings in which plans are tried
MOST_STEPS = 400
"""Until a choice: 12 go by first, and at most 6 rounds of 4 plans have 13 each."""


def make(width: int = 256) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 8)
    )


def train(model: nn.Module, rank: int, steps: int, after=lambda: None, first: int = 0) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(4, 256, generator=generator)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after()


def stages(model: nn.Module, layer: str = "0.weight") -> list:
    return gradwire.torch.plan(model).stages_of(layer)


def choose(model: nn.Module, rank: int) -> int:
    """Trains until there is a choice, which comes at the same step on all ranks; how many steps."""
    for step in range(MOST_STEPS):
        if gradwire.torch.stats(model).choice:
            return step
        train(model, rank, 1, first=step)
    raise AssertionError(f"no choice in {MOST_STEPS} steps")


def chosen_by(rank: int, **options):
    model = Ddp(make(), bucket_cap_mb=0.1)
    gradwire.torch.compress(model, **options)
    steps = choose(model, rank)
    return digest(model), gradwire.torch.plan(model).json(), steps


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_choose_alike(ranks):
    outcomes = on_ranks(ranks, chosen_by)
    assert len(set(outcomes)) == 1
    plan = json.loads(outcomes[0][1])
    (layer,) = (each for each in plan["layers"] if each["layers"] == "0.weight")
    ways = [stage["way"] for stage in layer["stages"]]
    assert ways[0] == "none"
    assert any(way.startswith("uniform") for way in ways), "nothing was tried"
    assert any(way.startswith("grid") for way in ways)
    assert layer["stages"][-1]["reason"] != "on trial"


def by_plan(rank: int, plan: str, steps: int) -> str:
    model = Ddp(make(), bucket_cap_mb=0.1)
    gradwire.torch.compress(model, plan=plan)
    train(model, rank, steps)
    return digest(model)


def test_a_run_with_the_plan_that_was_saved_has_the_same_bits():
    (bits, plan, steps), _ = on_ranks(2, chosen_by)
    assert on_ranks(2, by_plan, plan, steps) == [bits, bits]


def with_patterns(rank: int):
    model = Ddp(make())
    gradwire.torch.compress(model, exact=["0.*"], codecs={"2.weight": "fp16"})
    choose(model, rank)
    return stages(model, "0.weight"), stages(model, "2.weight"), stages(model, "0.bias")


def test_patterns_hold_whatever_is_chosen():
    for exact, fp16, bias in on_ranks(2, with_patterns):
        assert [way for _, way, _ in exact] == ["none"]
        assert exact[0][2] == "exact: 0.*"
        assert [way for _, way, _ in fp16] == ["fp16"]
        assert [way for _, way, _ in bias] == ["none"]


def without_a_choice(rank: int):
    model = Ddp(nn.Linear(256, 2))
    gradwire.torch.compress(model)
    train(model, rank, 40)
    return stages(model, "weight")


def test_a_model_that_no_codec_takes_stays_exact():
    for stage in on_ranks(2, without_a_choice):
        assert [way for _, way, _ in stage] == ["none"]


def alone(rank: int):
    model = Ddp(make())
    gradwire.torch.compress(model)
    train(model, rank, 30)
    return stages(model)


def test_one_rank_alone_exchanges_nothing():
    (only,) = on_ranks(1, alone)
    assert [way for _, way, _ in only] == ["none"]


def resumed(rank: int, folder: str):
    model = Ddp(make())
    gradwire.torch.compress(model)
    steps = choose(model, rank)
    state = {"steps": steps, "model": model.state_dict(), "gradwire": gradwire.torch.state_dict()}
    torch.save(state, f"{folder}/{rank}")
    train(model, rank, 10, first=steps)
    return digest(model), gradwire.torch.plan(model).json()


def resuming(rank: int, folder: str, compress_first: bool):
    model = Ddp(make())
    saved = torch.load(f"{folder}/{rank}", weights_only=False)
    model.load_state_dict(saved["model"])
    if compress_first:
        gradwire.torch.compress(model)
    gradwire.torch.load_state_dict(saved["gradwire"])
    if not compress_first:
        gradwire.torch.compress(model)
    train(model, rank, 10, first=saved["steps"])
    return digest(model), gradwire.torch.plan(model).json()


@pytest.mark.parametrize("compress_first", [True, False])
def test_a_resumed_run_goes_on_with_the_choice(tmp_path, compress_first):
    one = on_ranks(2, resumed, str(tmp_path))
    other = on_ranks(2, resuming, str(tmp_path), compress_first)
    assert other == one


def resharded(rank: int, folder: str):
    states = [torch.load(f"{folder}/{each}", weights_only=False)["gradwire"] for each in range(2)]
    model = Ddp(make())
    gradwire.torch.compress(model)
    gradwire.torch.load_state_dict(gradwire.torch.reshard(states, rank, 3))
    train(model, rank, 40)
    return gradwire.torch.stats(model).choice, len(stages(model))


def test_other_ranks_choose_anew(tmp_path):
    on_ranks(2, resumed, str(tmp_path))
    for choice, steps in on_ranks(3, resharded, str(tmp_path)):
        assert choice == ""
        assert steps > 1, "nothing is on trial"


def with_the_choice_of_another_model(rank: int):
    model = Ddp(make())
    gradwire.torch.compress(model)
    choose(model, rank)
    state = gradwire.torch.state_dict()
    plan = state["counters"][0]["plan"]
    state["counters"][0]["plan"] = plan.replace("2.weight", "3.weights")
    del model
    return state


def without_it(rank: int, states: list):
    model = Ddp(make())
    gradwire.torch.compress(model)
    gradwire.torch.load_state_dict(states[rank])
    train(model, rank, 3)
    return gradwire.torch.stats(model).choice


def test_the_choice_of_other_layers_is_not_taken():
    states = on_ranks(2, with_the_choice_of_another_model)
    assert on_ranks(2, without_it, states) == ["", ""]


def with_unused(rank: int, **options):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = make(), make()

        def forward(self, x):
            return self.used(x) if step[0] % 2 else self.used(x) + self.unused(x)

    step = [0]
    model = Ddp(Half(), bucket_cap_mb=0.1, find_unused_parameters=True, **options)
    gradwire.torch.compress(model)

    def count():
        step[0] += 1

    train(model, rank, STEPS, count)
    return digest(model), gradwire.torch.plan(model).json()


def test_layers_may_be_unused():
    assert len(set(on_ranks(2, with_unused))) == 1


def with_accumulation(rank: int):
    model = Ddp(make(), bucket_cap_mb=0.1)
    gradwire.torch.compress(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x = torch.randn(4, 256, generator=torch.Generator().manual_seed(1000 * step + rank))
        with model.no_sync():
            model(x).square().mean().backward()
        if step % 10 == 5:
            with gradwire.torch.exact():
                model(x).square().mean().backward()
        else:
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest(model), gradwire.torch.plan(model).json()


def test_accumulation_and_exact_steps_between():
    assert len(set(on_ranks(2, with_accumulation))) == 1


def sharded(rank: int):
    model = make()
    fully_shard(model[0])
    fully_shard(model)
    gradwire.torch.compress(model)
    choose(model, rank)
    return gradwire.torch.plan(model).json(), gradwire.torch.stats(model).choice


def test_fsdp2_chooses_among_codecs():
    (plan, choice), other = on_ranks(2, sharded)
    assert (plan, choice) == other
    (layer,) = (each for each in json.loads(plan)["layers"] if each["layers"] == "0.weight")
    assert {stage["way"].split(":")[0] for stage in layer["stages"]} == {"none", "uniform", "grid"}
    assert " a step; " in choice


class Unlike(nn.Module):
    """The last bucket is one that codecs do not take."""

    def __init__(self, kind: str):
        super().__init__()
        sparse = kind == "sparse"
        self.first = (
            nn.Embedding(64, 256, sparse=sparse) if sparse else nn.Linear(256, 256).double()
        )
        self.rest = make()

    def forward(self, x):
        if isinstance(self.first, nn.Embedding):
            return self.rest(self.first((x[:, :4].abs() * 10).long() % 64).sum(dim=1))
        return self.rest(self.first(x.double()).float())


def with_unlike_buckets(rank: int, kind: str):
    model = Ddp(Unlike(kind), bucket_cap_mb=0.1, find_unused_parameters=True)
    gradwire.torch.compress(model)
    train(model, rank, 60)
    return digest(model), gradwire.torch.plan(model).json()


@pytest.mark.parametrize("kind", ["sparse", "double"])
def test_buckets_that_no_codec_takes_hold_up_no_others(kind):
    assert len(set(on_ranks(2, with_unlike_buckets, kind))) == 1


def gone_in_the_middle(rank: int) -> str:
    """Rank 0 raises in a backward pass, drops its model and lives on; then rank 1 ends."""
    model = Ddp(make(), bucket_cap_mb=0.1)
    gradwire.torch.compress(model)
    train(model, rank, 4)
    if rank == 1:
        distributed.barrier()
        return ""

    def fail(gradient):
        raise RuntimeError("on purpose")

    x = torch.ones(4, 256, requires_grad=True)
    model.module[0].weight.register_hook(fail)  # its bucket is the last
    with pytest.raises(RuntimeError, match="on purpose"):
        model(x).sum().backward()
    del model
    distributed.barrier()
    gc.collect()
    time.sleep(1)  # the communicator's thread hears that rank 1 has gone
    return "alive"


def test_a_model_may_go_while_an_exchange_waits():
    assert on_ranks(2, gone_in_the_middle) == ["alive", ""]


def gone_back(rank: int, when: int):
    model = Ddp(make())
    gradwire.torch.compress(model)
    train(model, rank, when)
    state = gradwire.torch.state_dict()
    weights = {name: each.clone() for name, each in model.state_dict().items()}
    train(model, rank, STEPS, first=when)
    model.load_state_dict(weights)
    gradwire.torch.load_state_dict(state)
    train(model, rank, STEPS, first=when)
    plan = gradwire.torch.plan(model).json()
    gradwire.torch.Plan.parse(plan)  # its stages are in order
    return digest(model), plan


@pytest.mark.parametrize("when", [5, 40, STEPS])
def test_a_run_that_goes_back_has_a_plan_of_what_it_did(when):
    (bits, plan), other = on_ranks(2, gone_back, when)
    assert (bits, plan) == other
    steps = [stage["from_step"] for stage in json.loads(plan)["layers"][0].get("stages", [])]
    assert all(a < b for a, b in zip(steps, steps[1:], strict=False))


def shards_resumed(rank: int, states: list | None):
    model = fully_shard(make())
    if states:
        gradwire.torch.load_state_dict(states[rank])
    gradwire.torch.compress(model)
    if not states:
        choose(model, rank)
        return gradwire.torch.state_dict()
    train(model, rank, 3)
    return gradwire.torch.stats(model).choice


def test_fsdp2_goes_on_with_a_choice_that_was_loaded_before():
    states = on_ranks(2, shards_resumed, None)
    assert on_ranks(2, shards_resumed, states) == ["as before the checkpoint"] * 2


def with_other_patterns(rank: int, states: list | None):
    model = Ddp(make())
    patterns = {"exact": ["2.*"]} if states else {"codecs": {"2.*": "fp16"}}
    gradwire.torch.compress(model, **patterns)
    if states:
        gradwire.torch.load_state_dict(states[rank])
    if not states:
        choose(model, rank)
        return gradwire.torch.state_dict()
    train(model, rank, 3)
    return stages(model, "2.weight")[-1][1]


def test_patterns_hold_whatever_a_checkpoint_has():
    states = on_ranks(2, with_other_patterns, None)
    assert on_ranks(2, with_other_patterns, states) == ["none", "none"]


def another_choice(rank: int, states: list):
    model = Ddp(make())
    gradwire.torch.compress(model)
    if rank == 1:
        state = states[rank]["counters"][0]
        state["plan"] = re.sub(r'"from_step": [1-9]\d*', '"from_step": 7', state["plan"], count=1)
    gradwire.torch.load_state_dict(states[rank])
    with pytest.raises(ValueError, match="rank 1 goes on with another choice of a plan"):
        train(model, rank, 1)


def test_ranks_that_load_other_choices_are_named():
    states = on_ranks(2, with_other_patterns, None)
    on_ranks(2, another_choice, states)


def changed_meanwhile(rank: int):
    model = Ddp(make())
    gradwire.torch.compress(model)
    train(model, rank, 30)  # a plan is on trial
    gradwire.torch.compress(model, "grid:step=0.5")
    train(model, rank, 10)
    named = stages(model)
    gradwire.torch.compress(model)
    train(model, rank, 5)
    return digest(model), named, stages(model)


def test_compress_again_ends_the_trial():
    one, other = on_ranks(2, changed_meanwhile)
    assert one == other
    assert [way.split(":")[0] for _, way, _ in one[1]] == ["grid"]
    assert [way for _, way, _ in one[2]] == ["none"]


def slower_later(rank: int):
    """Every step waits, as for data, at some time much longer than before."""
    pause = [0.0]
    model = Ddp(make())
    gradwire.torch.compress(model)
    steps = choose(model, rank)
    before = len(stages(model))
    pause[0] = 0.05
    train(model, rank, 100, lambda: time.sleep(pause[0]), first=steps)
    return digest(model), before, len(stages(model)), gradwire.torch.plan(model).json()


def test_another_duration_begins_the_search_again():
    one, other = on_ranks(2, slower_later)
    assert one == other
    assert one[2] > one[1]


SCRIPT = """
import sys, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    torch.manual_seed(step + 1000 * distributed.get_rank())
    model(torch.randn(4, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
distributed.destroy_process_group()
"""


def run(tmp_path, *options: str, script: str = SCRIPT) -> str:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "gradwire.torch.run", *options, "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, timeout=200, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_gradwire_run_says_what_was_chosen_and_writes_it(tmp_path):
    plan = tmp_path / "plan.json"
    said = run(tmp_path, "--save-plan", str(plan))
    assert (
        "Sequential: all 4 layers travel exactly at first, while plans are tried; 2 ranks" in said
    )
    assert "Sequential, step " in said and " ms a step; " in said
    stages = json.loads(plan.read_text())["layers"][0]["stages"]
    assert stages[0]["way"] == "none" and len(stages) > 1
    again = run(tmp_path, "--plan", str(plan))
    assert "by a plan" in again


def test_a_run_that_ends_before_a_choice_writes_what_it_did(tmp_path):
    plan = tmp_path / "plan.json"
    said = run(tmp_path, "--save-plan", str(plan), script=SCRIPT.replace("range(400)", "range(30)"))
    assert "while plans are tried" in said
    assert json.loads(plan.read_text())["layers"]
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_plan_that_cannot_be_written_is_said_before_the_start(tmp_path):
    command = [sys.executable, "-m", "gradwire.torch.run", "--save-plan", "/nowhere/plan.json", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and "no plan can be written to /nowhere/plan.json" in done.stderr


def refused_alone(rank: int, arguments: dict) -> None:
    with pytest.raises(ValueError, match="write 'auto' alone, for a whole model"):
        gradwire.torch.compress(Ddp(make()), **arguments)


@pytest.mark.parametrize("arguments", [{"codec": "auto+feedback"}, {"codecs": {"0.*": "auto"}}])
def test_auto_stands_alone(arguments):
    on_ranks(1, refused_alone, arguments)


def test_gradwire_run_takes_auto_and_refuses_what_is_no_codec(tmp_path):
    assert "while plans are tried" in run(tmp_path, "--codec", "auto")
    command = [sys.executable, "-m", "gradwire.torch.run", "--codec", "automatic", "x.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and "automatic" in done.stderr
