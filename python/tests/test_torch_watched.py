"""What scripts do to gradients besides computing them, where compression does not go with it."""

from __future__ import annotations

import functools
import logging
import math

import gradwire.torch
import pytest
import torch
from test_torch_ddp import batches, small_model, train
from test_torch_residual import UNCHANGED
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_
from torch_ranks import digest, on_ranks

CLIPPED = {**UNCHANGED, "GRADWIRE_CLIP": "0.5"}


def backward(model: nn.Module, rank: int = 0) -> torch.Tensor:
    x, y = next(batches(rank, 1))
    return nn.functional.cross_entropy(model(x), y)


# -------------------------------------------------------------------------------------------------
# Loss scalers


def scaled(rank: int, feedback: bool, enabled: bool) -> None:
    model = Ddp(small_model())
    gradwire.torch.compress(model, "uniform:bits=4+feedback" if feedback else "uniform:bits=4")
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)
    scaler.scale(backward(model)).backward()


def scaled_under_residuals(rank: int) -> None:
    model = Ddp(small_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = backward(model)
    torch.amp.GradScaler("cpu", enabled=False).scale(loss)
    with pytest.raises(ValueError, match=r"bfloat16, which needs no scaler, or compress without"):
        torch.amp.GradScaler("cpu").scale(loss)
    optimizer.step()


def scaled_with_feedback(rank: int) -> None:
    with pytest.raises(ValueError, match=r"a step that the scaler skips would lose what was sent"):
        scaled(rank, True, True)
    gradwire.torch.compress(Ddp(small_model()), "uniform:bits=4")


def test_a_loss_scaler_is_refused_where_feedback_keeps_something():
    on_ranks(1, scaled_with_feedback)
    on_ranks(1, scaled_under_residuals, environment=UNCHANGED)


@pytest.mark.parametrize("feedback, enabled", [(False, True), (True, False)])
def test_other_scalers_work(feedback, enabled):
    on_ranks(1, scaled, feedback, enabled)


# -------------------------------------------------------------------------------------------------
# Clipping

CLIPPINGS = {
    "norm": lambda p: nn.utils.clip_grad_norm_(p, 0.5),
    "norm of a generator": lambda p: nn.utils.clip_grad_norm_((each for each in p), 0.5),
    "norm of one": lambda p: nn.utils.clip_grad_norm_(p[-1], 0.5),
    "norm, by its module": lambda p: nn.utils.clip_grad.clip_grad_norm_(p, max_norm=0.5),
    "norm, imported early": lambda p: clip_grad_norm_(p, 0.5),
    "norm, in parts": lambda p: nn.utils.clip_grads_with_norm_(p, 0.5, torch.tensor(9.0)),
    "norm, in parts, imported early": lambda p: clip_grads_with_norm_(p, 0.5, torch.tensor(9.0)),
    "value": lambda p: nn.utils.clip_grad_value_(p, 0.5),
    "value, imported early": lambda p: clip_grad_value_(p, clip_value=0.5),
    "value, by its module": lambda p: nn.utils.clip_grad.clip_grad_value_(p, 0.5),
}


def clips_itself(rank: int, residual: bool) -> None:
    model = Ddp(small_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if residual:
        gradwire.torch.residual(model, optimizer)
    else:
        gradwire.torch.compress(model, "grid+feedback")
    backward(model).backward()
    for what, clip in CLIPPINGS.items():
        alone = small_model()
        backward(alone).backward()
        clip(list(alone.parameters()))  # of another model
        if not residual:
            clip(list(model.parameters()))
            continue
        before = [parameter.grad.clone() for parameter in model.parameters()]
        run = "Run" if what.startswith("norm") else "Leave out clip_grad_value_ and run"
        fix = "0.5" if what.startswith("norm") else "NORM"
        with pytest.raises(
            ValueError, match=rf"{run} .*gradwire run --residual 0\.001 --clip {fix}`"
        ):
            clip(list(model.parameters()))
        after = [parameter.grad for parameter in model.parameters()]
        assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("residual", [True, False])
def test_clipping_after_the_backward_pass_is_refused_under_residuals_alone(residual):
    on_ranks(1, clips_itself, residual)


def clips_as_told(rank: int, clip: float | None) -> tuple[str, float]:
    model = Ddp(small_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches(rank, 4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
            assert norm > 0
        optimizer.step()
    return digest(model)


def clips_with_others(rank: int) -> None:
    model, other = Ddp(small_model()), small_model()
    kept = torch.optim.SGD(model.parameters(), lr=0.1)
    (backward(model) + backward(other)).backward()
    with pytest.raises(ValueError, match="clip those by themselves"):
        nn.utils.clip_grad_norm_([*model.parameters(), *other.parameters()], 0.5)
    del kept


def clips_otherwise(rank: int) -> None:
    with pytest.raises(ValueError, match=r"--clip 2"):
        clips_as_told(rank, 2.0)
    model = Ddp(small_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, rank, 1, optimizer=optimizer)
    with pytest.raises(ValueError, match=r"Leave out clip_grad_value_"):
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
    with pytest.raises(ValueError, match=r"Leave out clip_grad_norm_ with norm_type=inf and run"):
        nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type="inf")


def clips_in_parts(rank: int) -> None:
    model = Ddp(small_model(), find_unused_parameters=True)
    kept = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    layers = model.module
    backward(model).backward()
    for part in (layers[0].parameters(), layers[5].weight, [*layers.parameters()][1:]):
        with pytest.raises(ValueError, match="clips a part of them: clip all of them in one call"):
            clip_grad_norm_(part, 0.5)
    frozen, unused = layers[0].bias, layers[3].bias
    frozen.requires_grad_(False)
    unused.grad = None
    before = [each.grad.clone() for each in layers.parameters() if each.grad is not None]
    clip_grad_norm_([each for each in layers.parameters() if each is not frozen], 0.5)
    clip_grad_norm_([each for each in layers.parameters() if each is not unused], 0.5)
    after = [each.grad for each in layers.parameters() if each.grad is not None]
    assert all(map(torch.equal, before, after))
    del kept


def test_the_norm_of_a_part_of_the_gradients_is_not_that_of_all():
    on_ranks(1, clips_in_parts, environment=CLIPPED)


def looks_at_norms(rank: int) -> None:
    model = Ddp(small_model())
    kept = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    backward(model).backward()
    before = [each.grad.clone() for each in model.parameters()]
    norm = clip_grad_norm_(model.parameters(), math.inf)
    assert norm == nn.utils.get_total_norm(before)
    assert clip_grad_norm_(model.parameters(), math.inf, norm_type=1) > norm
    clip_grad_norm_([*model.module[0].parameters(), nn.Parameter(torch.ones(2))], math.inf)
    assert all(map(torch.equal, before, (each.grad for each in model.parameters())))
    del kept


@pytest.mark.parametrize("environment", [CLIPPED, UNCHANGED])
def test_clipping_to_no_norm_at_all_is_left_alone(environment):
    on_ranks(1, looks_at_norms, environment=environment)


def compiles_its_clipping(rank: int) -> None:
    model = Ddp(small_model())
    gradwire.torch.compress(model, "grid:step=0.5")
    backward(model).backward()
    clip = torch.compile(
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5), backend="eager", fullgraph=True
    )
    clip()
    assert nn.utils.get_total_norm([each.grad for each in model.parameters()]) < 0.51


def test_without_residuals_clipping_compiles_to_a_full_graph():
    on_ranks(1, compiles_its_clipping)


def test_an_unchanged_script_leaves_clipping_to_residual_compression():
    silent = on_ranks(2, clips_as_told, None, environment=CLIPPED)
    assert on_ranks(2, clips_as_told, 0.5, environment=CLIPPED) == silent
    assert on_ranks(2, clips_as_told, None, environment=UNCHANGED) != silent
    on_ranks(1, clips_otherwise, environment=CLIPPED)
    on_ranks(1, clips_with_others, environment=CLIPPED)


def without_some_buckets(rank: int) -> None:
    model = Ddp(small_model(), find_unused_parameters=True, skip_all_reduce_unused_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradwire.torch.residual(model, optimizer)
    with pytest.raises(ValueError, match="clip waits for all gradients of a step"):
        gradwire.torch.residual(model, optimizer, clip=1.0)


def test_a_norm_is_refused_of_gradients_that_ddp_leaves_out():
    on_ranks(1, without_some_buckets)


# -------------------------------------------------------------------------------------------------
# Others who exchange gradients


def with_python_reducer(rank: int, ours: bool) -> list[str]:
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("gradwire").addHandler(handler)
    torch._dynamo.config.optimize_ddp = "python_reducer"
    model = Ddp(small_model())
    if ours:
        with pytest.raises(ValueError, match="Python reducer exchanges gradients by itself"):
            gradwire.torch.compress(model, "grid:step=0.5")
    backward(model).backward()
    return said


def test_the_python_reducer_is_refused_or_warned_of():
    assert on_ranks(1, with_python_reducer, True) == [[]]
    for environment in ({"GRADWIRE": "1"}, UNCHANGED):
        (said,) = on_ranks(1, with_python_reducer, False, environment=environment)[0]
        assert "leaves Sequential alone: it has DDP's Python reducer" in said


def with_compiled_autograd(rank: int, feedback: bool) -> None:
    model = Ddp(small_model())
    gradwire.torch.compress(model, "uniform:bits=4+feedback" if feedback else "uniform:bits=4")
    loss = backward(model)
    compiler = functools.partial(torch.compile, backend="eager")
    with (
        torch._dynamo.compiled_autograd._enable(compiler),
        pytest.raises(RuntimeError, match=r"(?i)compiled autograd .* C\+\+ .*reducer"),
    ):
        loss.backward()


@pytest.mark.parametrize("feedback", [False, True])
def test_compiled_autograd_is_refused_in_a_clear_sentence(feedback):
    on_ranks(1, with_compiled_autograd, feedback)


def with_a_hook_after_residuals(rank: int) -> None:
    model = Ddp(small_model())
    train(model, rank, 1, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    with pytest.raises(ValueError, match="residual compression has the momentum of this model"):
        model._register_builtin_comm_hook(distributed.BuiltinCommHookType.ALLREDUCE)


def test_a_hook_cannot_take_the_place_of_residuals_that_have_the_momentum():
    on_ranks(1, with_a_hook_after_residuals, environment=UNCHANGED)


def both(rank: int) -> None:
    model = Ddp(small_model())
    kept = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"leave out \+feedback of sign\+feedback"):
        backward(model)
    del kept


def test_residuals_and_feedback_together_are_refused():
    on_ranks(1, both, environment={**UNCHANGED, "GRADWIRE_CODEC": "sign+feedback"})
