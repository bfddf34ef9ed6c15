"""Plans: files that say how every layer of a PyTorch model travels."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import subprocess
import sys

import gradwire.torch
import pytest
import torch
from gradwire.torch import residual_settings
from gradwire.torch._native import Layer
from test_torch_golden_bits import SHAPES, STEPS, Model, fsdp, train
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import digest, on_ranks

WAYS = [
    "none",
    "grid:step=0.5",
    "sign+feedback",
    "none",
    "topk:density=0.02+feedback",
    "uniform:bits=2+route:ring",
    "none+feedback",
    "fp16+route:allgather",
    "topk:density=0.01,values=int8+feedback:reuse=2",
]
"""Exact, lossy and sparse, one after the other."""


def plan_of(ways: list[str], **more) -> dict:
    """Every layer takes another way every third step, each beginning with another one."""
    layers = []
    for i, name in enumerate(SHAPES):
        chosen = itertools.islice(itertools.cycle(ways), i, i + STEPS // 3)
        stages = [{"from_step": 3 * k, "way": way} for k, way in enumerate(chosen)]
        layers.append({"layers": name, "stages": stages})
    return {"gradwire_plan": 1, "layers": layers, **more}


def by_plan(rank: int, plan: dict, bucket_mb: float = 0.1) -> str:
    model = Ddp(Model(), bucket_cap_mb=bucket_mb)
    gradwire.torch.compress(model, plan=plan, seed=7)
    train(model, rank)
    return digest(model)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ways_that_change_all_the_time_leave_replicas_equal(ranks):
    assert len(set(on_ranks(ranks, by_plan, plan_of(WAYS)))) == 1


def test_what_is_in_a_bucket_makes_no_difference():
    small, large = (on_ranks(2, by_plan, plan_of(WAYS), mb) for mb in (0.05, 25))
    assert set(small) == set(large)


def every_gradient(rank: int, plan: dict) -> list[list[float]]:
    """The sums over all steps of what ranks put in, and of what came out."""
    model = Ddp(Model())
    gradwire.torch.compress(model, plan=plan)
    put_in, came_out = (
        [torch.zeros(w.shape, dtype=torch.double) for w in model.parameters()] for _ in range(2)
    )
    for step in range(STEPS):
        for of in range(2):
            random = torch.Generator().manual_seed(1000 * step + of)
            with torch.no_grad():
                alone = Model()
            alone(random).backward()
            for total, weight in zip(put_in, alone.parameters(), strict=True):
                total += weight.grad / 2
        model.zero_grad()
        model(torch.Generator().manual_seed(1000 * step + rank)).backward()
        for total, weight in zip(came_out, model.parameters(), strict=True):
            total += weight.grad
    return [float((a - b).abs().max()) for a, b in zip(put_in, came_out, strict=True)]


def test_nothing_is_lost_when_a_layer_becomes_exact():
    keeping = [way for way in WAYS if way == "none" or "+feedback" in way]
    plan = plan_of(keeping)
    for entry in plan["layers"]:
        entry["stages"][-1]["way"] = "none"
    for losses in on_ranks(2, every_gradient, plan):
        assert max(losses) < 1e-3


def test_fsdp_takes_ways_by_step():
    def alone(way: str) -> dict:
        return {"gradwire_plan": 1, "default": {"way": way}}

    changing = plan_of(["none", "grid:step=0.5", "uniform:bits=4"])
    found = [on_ranks(2, fsdp, None, plan) for plan in (changing, alone("none"), alone("grid"))]
    assert all(len(set(each)) == 1 for each in found)
    assert len({each[0] for each in found}) == 3


# -------------------------------------------------------------------------------------------------


def errors_by_step(rank: int, wrap: str) -> list[float]:
    """Those shown after each step, and after the codec is another."""
    model = nn.Sequential(nn.Linear(64, 64))
    model = Ddp(model) if wrap == "ddp" else fully_shard(model)
    stages = [{"way": "none"}, {"from_step": 2, "way": "uniform:bits=1"}]
    layers = [{"layers": "0.weight", "stages": stages}]
    gradwire.torch.compress(model, plan={"gradwire_plan": 1, "layers": layers})
    torch.manual_seed(rank)
    found = []
    for step in range(5):
        with gradwire.torch.exact() if step == 2 else contextlib.nullcontext():
            model(torch.randn(8, 64)).square().sum().backward()
        found.append(gradwire.torch.stats(model))
    gradwire.torch.compress(model, "fp16")
    found.append(gradwire.torch.stats(model))
    assert [str(each).splitlines()[2].split()[-1] == "-" for each in found] == [
        each.layers["0.weight"].energy == 0 for each in found
    ]
    return [each.layers["0.weight"].nmse for each in found]


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_the_error_shown_is_that_of_the_way_shown(wrap):
    for exact, still, unmeasured, lossy, later, another in on_ranks(2, errors_by_step, wrap):
        assert exact == still == unmeasured == 0
        assert lossy > 0.1
        assert later == pytest.approx(lossy, rel=0.2)  # a later step may be in the sample
        assert another == 0


def differing(rank: int, first: dict | None, second: dict | None) -> str:
    model = Ddp(Model())
    plan = second if rank == 1 else first
    with pytest.raises(ValueError) as refused:
        gradwire.torch.compress(model, plan=plan)
    return str(refused.value)


def test_a_rank_with_another_plan_is_named_with_the_first_layer_that_differs():
    plan, other = (
        {
            "gradwire_plan": 1,
            "layers": [
                {"layers": "hid*", "way": "fp16"},
                {"layers": "head", "stages": [{"way": "none"}, {"from_step": 9, "way": way}]},
            ],
        }
        for way in ("sign", "sign+feedback")
    )
    for said in on_ranks(3, differing, plan, other):
        assert said.startswith(
            "gradwire: ranks do not agree: rank 1 has none, from step 9 on sign:bucket="
        ), said
        assert "+feedback for head in its plan where rank 0 has none, from step 9 on sign:" in said
    for said in on_ranks(2, differing, plan, None):
        assert "rank 1 has no plan where rank 0 has the plan " in said, said


def agreeing(rank: int, first: dict, second: dict) -> bool:
    gradwire.torch.compress(Ddp(Model()), plan=second if rank == 1 else first)
    return True


def test_reasons_are_for_people_and_not_compared():
    plan = {"gradwire_plan": 1, "default": {"way": "sign"}}
    reasoned = {**plan, "default": {"way": "sign", "reason": "of another file"}}
    assert on_ranks(2, agreeing, plan, reasoned) == [True, True]


def refused_plans(rank: int, path: str) -> list[str]:
    model = Ddp(Model())
    endless: dict = {}
    endless["gradwire_plan"] = endless
    wrong = [
        {"plan": 7},
        {"plan": ""},
        {"plan": b"{}"},
        {"plan": "/no/such/plan.json"},
        {"plan": path},
        {"plan": plan_of(WAYS), "codec": "sign"},
        {"plan": plan_of(WAYS), "codecs": {"head": "sign"}},
        {"plan": plan_of(WAYS), "exact": ["head"]},
        {"plan": plan_of(["sign+feedback:momentum=0.9"])},
        {"plan": {"gradwire_plan": 1, "layers": [{"layers": "haed", "way": "none"}]}},
        {"plan": path + ".2"},
        {"plan": {"gradwire_plan": 1, "layers": [{"layers": "head", "way": "grdi"}]}},
        {"plan": {"gradwire_plan": 1, "default": {"stages": [{"way": "none"}, {"way": None}]}}},
        {"plan": {"gradwire_plan": 1, "default": {"way": "none", "reason": {1: 2}}}},
        {"plan": {"gradwire_plan": True}},
        {"plan": {"gradwire_plan": 1, "layers": [{"layers": "a\0b", "way": "none"}]}},
        {"plan": endless},
        {"codec": "sign\0"},
    ]
    said = []
    for arguments in wrong:
        with pytest.raises((TypeError, ValueError, OSError)) as refused:
            gradwire.torch.compress(model, **arguments)
        said.append(str(refused.value))
    return said


def test_wrong_plans_are_refused_before_ranks_wait(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{\n "gradwire_plan": 1,\n "defualt": {}\n}')
    entries = [{"layers": name, "way": "none"} for name in ("haed", "head", "bodi.*")]
    other = json.dumps({"gradwire_plan": 1, "layers": entries}, indent=1)
    (tmp_path / "plan.json.2").write_text(other)
    said = iter(on_ranks(2, refused_plans, str(path))[0])
    for given in ("7", "''", "b'{}'"):
        assert f"plan is {given}; give the path" in next(said)
    assert "/no/such/plan.json" in next(said)
    assert f"{path}, line 3: unknown key 'defualt'" in next(said)
    for _ in range(3):
        assert "leave out the other arguments" in next(said)
    assert "momentum" in next(said)
    assert "no layer matches 'haed' (plan['layers'][0]) of the plan" in next(said)
    two = f"no layer matches 'haed' ({path}.2, line 4), 'bodi.*' ({path}.2, line 12) of the plan"
    assert two in next(said)
    assert next(said).startswith("plan['layers'][0]['way']: unknown codec 'grdi'")
    words = "plan['default']['stages'][1]['way']: 'way' is a text: expected one here, not None"
    assert next(said) == words
    assert next(said) == "plan['default']['reason']: keys are texts, and one is 1"
    assert "expected 1 here, not True" in next(said)
    assert next(said) == "plan['layers'][0]['layers']: 'layers' has a NUL byte: leave it out"
    assert "too many brackets in brackets" in next(said)
    assert next(said) == "a way has a NUL byte: leave it out"


def with_its_plan(rank: int, arguments: dict) -> tuple[str, str]:
    """Weights, and the plan that these arguments make."""
    model = Ddp(Model(), bucket_cap_mb=0.1)
    gradwire.torch.compress(model, **arguments, seed=7)
    train(model, rank)
    return digest(model), gradwire.torch.plan(model).json()


def with_the_plan_of_another(rank: int, arguments: dict) -> tuple[str, str]:
    other = gradwire.torch.compress(Ddp(Model()), **arguments)
    plan = gradwire.torch.plan(other)
    return with_its_plan(rank, {"plan": plan})


@pytest.mark.parametrize("codec", ["sign+feedback", "grid:step=0.5"])
def test_the_plan_that_compress_makes_gives_the_same_bits(codec):
    arguments = {"codec": codec, "codecs": {"head*": "uniform:bits=2"}, "exact": ["hidden"]}
    first, second = on_ranks(2, with_its_plan, arguments)
    assert first == second
    weights, plan = first
    assert '"reason": "asked for by head*"' in plan
    for form in (plan, json.loads(plan)):
        assert on_ranks(2, with_its_plan, {"plan": form})[0] == (weights, plan)
    assert on_ranks(2, with_the_plan_of_another, arguments)[0][1] == plan


def plan_of_fsdp(rank: int, codec: str) -> str:
    model = gradwire.torch.compress(fully_shard(Model()), codec)
    return gradwire.torch.plan(model).json()


def test_the_plan_of_fsdp_gives_the_same_bits():
    (plan,) = set(on_ranks(2, plan_of_fsdp, "uniform:bits=4"))
    assert '"reason": "biases and norms travel exactly"' in plan
    assert on_ranks(2, fsdp, None, json.loads(plan)) == on_ranks(2, fsdp, "uniform:bits=4")


def without_a_plan(rank: int) -> None:
    with pytest.raises(ValueError, match="this model is not compressed"):
        gradwire.torch.plan(Ddp(Model()))


def test_what_is_not_compressed_has_no_plan():
    on_ranks(2, without_a_plan)


def plan_and_residual(rank: int) -> str:
    model = Ddp(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradwire.torch.compress(model, plan=plan_of(WAYS))
    with pytest.raises(ValueError) as refused:
        gradwire.torch.residual(model, optimizer)
    gradwire.torch.compress(model, "grid:step=0.5")
    gradwire.torch.residual(model, optimizer, momentum=0)
    gradwire.torch.compress(model, plan=plan_of(WAYS))  # nothing of the residuals' would be lost
    gradwire.torch.compress(model, "grid:step=0.5")
    gradwire.torch.residual(model, optimizer)
    with pytest.raises(ValueError, match="compress would drop them"):
        gradwire.torch.compress(model, plan=plan_of(WAYS))
    return str(refused.value)


def test_a_plan_and_residual_compression_are_not_mixed():
    for said in on_ranks(2, plan_and_residual):
        assert said.startswith("this model travels by a plan, in whose place"), said


@pytest.mark.parametrize(
    "link, codec", [("10mbit", "topk"), ("1gbit", "topk"), ("900gbit", "none")]
)
def test_what_a_link_carries_faster_whole_is_not_selected_from(link, codec):
    chosen = residual_settings.Settings(small="none", link=link, ranks=4, warmup=9)
    stages = chosen.plan_for([Layer("layer", 1_000_000, 2)]).stages_of("layer")
    assert stages[-1][1].startswith(codec)
    assert len(stages) == (2 if codec == "topk" else 1)


# -------------------------------------------------------------------------------------------------
# Without a change to the script

SCRIPT = """
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
for step in range(3):
    model(torch.ones(4, 64)).sum().backward()
distributed.destroy_process_group()
"""


def test_a_relative_path_is_of_the_folder_in_which_a_program_starts(tmp_path):
    """Which goes elsewhere before it needs the plan."""
    (tmp_path / "plan.json").write_text('{"gradwire_plan": 1, "default": {"way": "fp16"}}')
    (tmp_path / "script.py").write_text(
        "import os, torch\nos.chdir('/')\n"
        "from gradwire.torch import settings\n"
        "print(os.environ['GRADWIRE_PLAN'], settings.from_environment().plan)"
    )
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "GRADWIRE_PLAN": "plan.json"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "plan.json") in done.stdout and "fp16" in done.stdout


def run(folder, plan: str, *flags: str) -> subprocess.CompletedProcess:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "plan.json").write_text(plan)
    return subprocess.run(
        [sys.executable, "-m", "gradwire.torch.run", "--plan", "plan.json", *flags]
        + ["--nproc-per-node", "2", "--standalone", "script.py"],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if not key.startswith("GRADWIRE")},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_gradwire_run_takes_a_plan(tmp_path):
    layers = [{"layers": "0.weight", "way": "fp16"}, {"layers": "9.*", "way": "sign"}]
    plan = {"gradwire_plan": 1, "layers": layers, "default": {"way": "none"}}
    done = run(tmp_path, json.dumps(plan))
    assert done.returncode == 0, done.stderr
    assert "1 of 4 layers (49 % of the gradients) travel as fp16" in done.stderr
    assert "the others exactly; by a plan; 2 ranks" in done.stderr
    place = f"'9.*' of {tmp_path / 'plan.json'}, line 1"
    assert f"no layer of Sequential matches {place}; there are, for instance, 0.w" in done.stderr
    assert f"gradwire: no layer of any model matched {place}" in done.stderr


def compressed_by_script(rank: int, wrap: str) -> tuple[list[str], str]:
    """What is logged, and the codec."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("gradwire").addHandler(handler)
    model = nn.Sequential(nn.Linear(64, 64))
    model = Ddp(model) if wrap == "ddp" else fully_shard(model)
    for codec in ("sign", "fp16"):
        gradwire.torch.compress(model, codec)
    return said, gradwire.torch.stats(model).layers["0.weight"].codec


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_a_call_in_the_script_stands_above_the_plan_and_says_so_once(tmp_path, wrap):
    (tmp_path / "plan.json").write_text('{"gradwire_plan": 1}')
    environment = {"GRADWIRE": "1", "GRADWIRE_PLAN": str(tmp_path / "plan.json")}
    first, second = on_ranks(2, compressed_by_script, wrap, environment=environment)
    said = [line for line in first[0] if "does not travel by the plan" in line]
    assert len(said) == 1 and f"Sequential does not travel by the plan {tmp_path}" in said[0]
    assert (first[1], second) == ("fp16", ([], "fp16"))


def test_a_plan_for_later_is_announced_as_such(tmp_path):
    stages = [{"way": "none"}, {"from_step": 1000, "way": "sign+feedback"}]
    plan = {"gradwire_plan": 1, "layers": [{"layers": "0.weight", "stages": stages}]}
    done = run(tmp_path, json.dumps(plan))
    assert done.returncode == 0, done.stderr
    assert (
        "travel as sign+feedback, the others exactly; so from step 1000 on, by a plan"
        in done.stderr
    )


def test_gradwire_run_refuses_a_wrong_plan_at_once(tmp_path):
    done = run(tmp_path, '{\n"gradwire_plan": 1,\n"default": {"way": "grdi"}}')
    assert done.returncode == 2 and "line 3: unknown codec 'grdi'" in done.stderr
    done = run(tmp_path, '{"gradwire_plan": 1}', "--codec", "sign")
    assert done.returncode == 2 and "leave out --codec (GRADWIRE_CODEC), or --plan" in done.stderr


def test_a_layer_of_any_name_is_described():
    model = nn.ModuleDict({"w[0]": nn.Linear(64, 64), "w0": nn.Linear(64, 64)})
    from gradwire.torch import layers, settings

    plan = settings.Settings("grid:step=0.5", exact=("w0.*",)).plan_for(layers.described(model))
    assert plan.stages_of("w[0].weight")[0][1].startswith("grid")
    assert plan.stages_of("w0.weight")[0][1:] == ("none", "exact: w0.*")


def with_numbers_that_have_a_plus(rank: int) -> None:
    model = Ddp(Model())
    gradwire.torch.compress(model, "grid:step=1e+00")
    train(model, rank)


def test_a_plus_may_be_part_of_a_number():
    on_ranks(2, with_numbers_that_have_a_plus, environment={"GRADWIRE_SUMMARY": "1"})


def until_nothing_is_owed(rank: int) -> list[str]:
    """Gradients that are thrown away after feedback has ended, in the second step and in a later
    one. The first has brought what was kept.
    """
    said = []
    for exchanges in (1, 4):
        model = Ddp(nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(*, used: bool, model=model, optimizer=optimizer) -> None:
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            if used:
                optimizer.step()

        gradwire.torch.compress(model, "sign+feedback")
        step(used=True)
        gradwire.torch.compress(model, "none")
        for exchange in range(exchanges):
            step(used=exchange + 1 < exchanges)
        try:
            step(used=True)
            step(used=True)
            said.append("")
        except ValueError as error:
            said.append(str(error))
    return said


def test_a_gradient_that_brings_what_was_kept_must_not_be_thrown_away():
    first, later = on_ranks(2, until_nothing_is_owed)[0]
    assert "thrown away without a step" in first
    assert later == ""


def after_feedback(rank: int) -> tuple[list[str], list[str], list[str]]:
    """What a plan whose feedback ends with the third step says to skipped steps, and to a scaled
    loss before each step; and the codec that statistics show after it.
    """
    stages = [{"way": "sign+feedback"}, {"from_step": 3, "way": "fp16"}]
    layers = [{"layers": "*.weight", "stages": stages}]
    model = Ddp(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    gradwire.torch.compress(model, plan={"gradwire_plan": 1, "layers": layers})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaled, skipped, codecs = [], [], []
    for step in range(12):
        optimizer.zero_grad()
        scaled.append(_complaint(lambda: scaler.scale(torch.ones(1))))
        loss = model(torch.ones(2, 64)).sum()
        skipped.append(_complaint(loss.backward))
        if step < 6 or step % 3 == 0:
            optimizer.step()
        codecs.append(gradwire.torch.stats(model).layers["0.weight"].codec)
    return scaled, skipped, codecs


def _complaint(call) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def test_what_feedback_forbids_is_allowed_when_it_has_ended():
    """It ends with step 3, which brings what was held back; step 5 sees that this was used."""
    scaled, skipped, codecs = on_ranks(2, after_feedback)[0]
    assert ["loss scaler" in each for each in scaled] == 6 * [True] + 6 * [False]
    assert skipped == 12 * [""]
    assert [each.split(":")[0] for each in codecs] == 3 * ["sign"] + 9 * ["fp16"]


def goes_on_after_feedback(rank: int, state: dict | None) -> tuple[dict, list[str]]:
    """From the step with which feedback ends: what it kept is in the state, and still to come."""
    stages = [{"way": "sign+feedback"}, {"from_step": 2, "way": "none"}]
    model = Ddp(nn.Linear(64, 64))
    plan = {"gradwire_plan": 1, "layers": [{"layers": "weight", "stages": stages}]}
    gradwire.torch.compress(model, plan=plan)
    if state:
        gradwire.torch.load_state_dict(state[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []
    for step in range(6 if state else 2):
        optimizer.zero_grad()
        said.append(_complaint(model(torch.ones(2, 64)).sum().backward))
        if said[-1]:
            break
        if not state or step != 0:
            optimizer.step()
    return gradwire.torch.state_dict(), said


def test_what_a_checkpoint_owes_is_guarded():
    states = [state for state, _ in on_ranks(2, goes_on_after_feedback, None)]
    _, said = on_ranks(2, goes_on_after_feedback, states)[0]
    assert any("thrown away without a step" in each for each in said), said


def refused_by_fsdp(rank: int) -> list[str]:
    said = []
    for arguments in (
        {"weights": "uniform:bits=8+feedback"},
        {"weights": "uniform:bits=8+route:ring"},
        {"codec": "grid+route:tree"},
        {"codecs": {"head": "fp16+route:sra"}},
    ):
        with pytest.raises(ValueError) as refused:
            gradwire.torch.compress(fully_shard(Model()), **arguments)
        said.append(str(refused.value))
    return said


def test_fsdp_refuses_what_it_cannot_do_at_once():
    feedback, *routes = on_ranks(2, refused_by_fsdp)[0]
    assert "weights have no feedback" in feedback
    assert all("leave out +route" in each for each in routes)
