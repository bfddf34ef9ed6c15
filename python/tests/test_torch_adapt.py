"""Every layer's grid is as fine as its gradient asks for, on all ranks alike, and guarded."""

from __future__ import annotations

import gradwire.torch
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import digest, on_ranks

STEPS = 40


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
    )


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes that the first numbers tell."""
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, x[:, :8].argmax(dim=1)


def train(model: nn.Module, rank: int, steps: int, first: int = 0, scale=lambda step: 1.0):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(first, first + steps):
        x, classes = batch(step, rank)
        loss = nn.functional.cross_entropy(model(x), classes)
        (loss * scale(step)).backward()
        optimizer.step()
        optimizer.zero_grad()


def adapted(**options) -> Ddp:
    return gradwire.torch.compress(Ddp(make(), bucket_cap_mb=0.1), "adapt", **options)


def stages(model: nn.Module, layer: str = "0.weight") -> list:
    return gradwire.torch.plan(model).stages_of(layer)


def step_of(way: str) -> float:
    return float(way.removeprefix("grid:step=").split(",")[0])


def seen_of(model: nn.Module):
    return digest(model), gradwire.torch.plan(model).json()


def ddp(rank: int):
    model = adapted()
    train(model, rank, STEPS)
    return seen_of(model)


def sharded(rank: int):
    model = make()
    fully_shard(model[0])
    fully_shard(model)
    gradwire.torch.compress(model, "adapt")
    train(model, rank, STEPS)
    return gradwire.torch.plan(model).json()


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_adapt_alike(ranks):
    outcomes = on_ranks(ranks, ddp)
    assert len(set(outcomes)) == 1
    plan = gradwire.torch.Plan.parse(outcomes[0][1])
    assert [way for _, way, _ in plan.stages_of("0.bias")] == ["none"]
    first, *later = (step_of(way) for _, way, _ in plan.stages_of("0.weight"))
    assert later, "nothing was adapted"
    assert later[-1] > first
    assert step_of(plan.stages_of("4.weight")[-1][1]) < later[-1], "its gradients are larger"
    assert plan.stages_of("0.weight")[-1][2].startswith("adapted: consensus 0.")


@pytest.mark.parametrize("ranks", [2, 3])
def test_fsdp2_adapts_alike(ranks):
    plans = on_ranks(ranks, sharded)
    assert len(set(plans)) == 1
    assert len(gradwire.torch.Plan.parse(plans[0]).stages_of("0.weight")) > 1


def test_one_rank_alone_has_nothing_to_adapt():
    ((_, plan),) = on_ranks(1, ddp)
    found = gradwire.torch.Plan.parse(plan).stages_of("0.weight")
    assert [way for _, way, _ in found] == ["none"]


def by_plan(rank: int, plan: str):
    model = Ddp(make(), bucket_cap_mb=0.1)
    gradwire.torch.compress(model, plan=plan)
    train(model, rank, STEPS)
    return digest(model)


def test_a_run_with_the_plan_has_the_same_bits():
    (bits, plan), _ = on_ranks(2, ddp)
    assert on_ranks(2, by_plan, plan) == [bits, bits]


def leaping(step: int) -> float:
    return 1000.0 if step >= 18 else 1.0


def saving(rank: int, folder: str, at: int):
    """Each call of `train` has an optimizer of its own, so of that there is nothing to save."""
    model = adapted()
    train(model, rank, at, scale=leaping)
    state = {"model": model.state_dict(), "gradwire": gradwire.torch.state_dict()}
    torch.save(state, f"{folder}/{rank}")
    train(model, rank, STEPS, first=at, scale=leaping)
    return seen_of(model)


def resuming(rank: int, folder: str, at: int, compress_first: bool):
    model = Ddp(make(), bucket_cap_mb=0.1)
    saved = torch.load(f"{folder}/{rank}", weights_only=False)
    model.load_state_dict(saved["model"])
    if compress_first:
        gradwire.torch.compress(model, "adapt")
    gradwire.torch.load_state_dict(saved["gradwire"])
    if not compress_first:
        gradwire.torch.compress(model, "adapt")
    train(model, rank, STEPS, first=at, scale=leaping)
    return seen_of(model)


@pytest.mark.parametrize("at", [1, 10, 19, 20, 22])  # before, in and after the guard's work
@pytest.mark.parametrize("compress_first", [True, False])
def test_a_resumed_run_is_equal_to_the_uninterrupted_one(tmp_path, at, compress_first):
    one = on_ranks(2, saving, str(tmp_path), at)
    assert on_ranks(2, resuming, str(tmp_path), at, compress_first) == one


def resharded(rank: int, folder: str):
    states = [torch.load(f"{folder}/{each}", weights_only=False)["gradwire"] for each in range(2)]
    model = adapted()
    gradwire.torch.load_state_dict(gradwire.torch.reshard(states, rank, 3))
    train(model, rank, STEPS)
    return seen_of(model)


def test_other_ranks_begin_anew(tmp_path):
    on_ranks(2, saving, str(tmp_path), 10)
    assert len(set(on_ranks(3, resharded, str(tmp_path)))) == 1


def guarded(rank: int, kind: str):
    model = adapted()
    train(model, rank, 20)
    usual = stages(model)[-1][1]

    def scale(step: int) -> float:
        if kind == "leap":
            return 1000.0
        return float("nan") if rank == 1 and step < 25 else 1.0

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(20, 50):
        x, classes = batch(step, rank)
        loss = nn.functional.cross_entropy(model(x), classes)
        if kind == "loss":
            gradwire.torch.loss(loss * (100 if step == 30 else 1))
            loss.backward()
        else:
            (loss * scale(step)).backward()
        optimizer.zero_grad()
    return usual, stages(model), digest(model)


def guards(found) -> list[tuple[int, str]]:
    return [(step, way) for step, way, reason in found if reason.startswith("guarded")]


def test_a_leap_of_gradients_makes_them_finer_within_two_steps():
    (usual, found, _), other = on_ranks(2, guarded, "leap")
    assert other == (usual, found, other[2])
    ((step, way), *_) = guards(found)
    assert step == 22
    assert step_of(way) == pytest.approx(step_of(usual) / 4, rel=0.02)
    assert not found[-1][2].startswith("guarded")


def test_what_is_not_finite_travels_exactly_until_it_is():
    (_, found, _), other = on_ranks(2, guarded, "nan")
    assert other[1] == found
    assert guards(found) == [(22, "none")]
    after = next(stage for stage in found if stage[0] > 22)
    assert after[0] == 27  # two steps after the last one
    assert after[1].startswith("grid")


def test_a_leap_of_the_loss_makes_all_layers_exact_for_a_while():
    (_, found, _), other = on_ranks(2, guarded, "loss")
    assert other[1] == found
    assert guards(found) == [(31, "none")]  # it was told before the exchanges of step 30
    assert next(stage for stage in found if stage[0] > 31)[0] == 39


def odd(rank: int, kind: str):
    model = adapted(exact=["2.*"]) if kind == "patterns" else adapted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x, classes = batch(step, rank)
        if kind == "accumulation":
            with model.no_sync():
                nn.functional.cross_entropy(model(x), classes).backward()
        if kind == "exact" and step % 7 == 3:
            with gradwire.torch.exact():
                nn.functional.cross_entropy(model(x), classes).backward()
        else:
            nn.functional.cross_entropy(model(x), classes).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=kind != "accumulation")
        if kind == "codecs" and step == 20:
            gradwire.torch.compress(model, "sign+feedback")
        if kind == "codecs" and step == 30:
            gradwire.torch.compress(model, "adapt")
    return digest(model), [way for _, way, _ in stages(model, "2.weight")]


@pytest.mark.parametrize("kind", ["accumulation", "exact", "codecs", "patterns"])
def test_odd_steps_between(kind):
    one, other = on_ranks(2, odd, kind)
    assert one == other
    assert (one[1] == ["none"]) == (kind == "patterns")


@pytest.mark.parametrize("text", ["adapt+feedback", "adapt:step=1", "ADAPT"])
def test_it_takes_no_keys(text):
    with pytest.raises(ValueError, match="write 'adapt' alone"):
        gradwire.torch.settings.checked_way(text)


def of_one_layer(rank: int):
    with pytest.raises(ValueError, match="no codec of single layers"):
        gradwire.torch.compress(Ddp(make()), codecs={"0.weight": "adapt"})


def test_it_is_no_codec_of_single_layers():
    on_ranks(2, of_one_layer)


def test_a_loss_without_a_model_is_taken():
    gradwire.torch.loss(1.5)
    gradwire.torch.loss(torch.tensor(2.0))
    with pytest.raises((TypeError, ValueError)):
        gradwire.torch.loss("much")


def replicated_shards(rank: int, shape: tuple[int, int]):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = make()
    fully_shard(model, mesh=mesh)
    gradwire.torch.compress(model, "adapt")
    train(model, rank, STEPS)
    return gradwire.torch.plan(model).json()


@pytest.mark.parametrize("shape", [(2, 2), (2, 1)])
def test_hsdp_adapts_alike(shape):
    plans = on_ranks(shape[0] * shape[1], replicated_shards, shape)
    assert len(set(plans)) == 1
    assert len(gradwire.torch.Plan.parse(plans[0]).stages_of("0.weight")) > 1


def saving_a_choice(rank: int, folder: str, codec: str):
    model = gradwire.torch.compress(Ddp(make()), codec)
    train(model, rank, 3 if codec == "adapt" else 400)
    torch.save(gradwire.torch.state_dict(), f"{folder}/{rank}")


def loading_another(rank: int, folder: str, codec: str):
    model = gradwire.torch.compress(Ddp(make()), codec)
    gradwire.torch.load_state_dict(torch.load(f"{folder}/{rank}", weights_only=False))
    train(model, rank, 5)
    return gradwire.torch.stats(model).choice, stages(model)[-1][1]


def test_what_auto_has_chosen_is_not_that_of_adapt(tmp_path):
    on_ranks(2, saving_a_choice, str(tmp_path), "auto")
    for choice, way in on_ranks(2, loading_another, str(tmp_path), "adapt"):
        assert choice == "grid, as fine as each layer needs it"
        assert way.startswith("grid")


def test_what_adapt_has_found_is_no_choice_of_auto(tmp_path):
    on_ranks(2, saving_a_choice, str(tmp_path), "adapt")
    for choice, _ in on_ranks(2, loading_another, str(tmp_path), "auto"):
        assert choice == ""


def reported_by_one(rank: int):
    model = adapted()
    for step in range(20):
        if rank == 0:
            gradwire.torch.loss(float("inf"))
            gradwire.torch.loss(1.0)
        train(model, rank, 1, first=step)
    return stages(model)


def test_a_loss_that_one_rank_alone_reports_is_no_reason():
    for found in on_ranks(2, reported_by_one):
        assert not guards(found)
