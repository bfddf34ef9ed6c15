"""Residual compression: few numbers of every gradient, with momentum, and the rest later."""

from __future__ import annotations

import contextlib
import math

import gradwire.torch
import pytest
import torch
from test_torch_ddp import batches, small_model, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch_ranks import digest, on_ranks

MOMENTA = [
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.5, "weight_decay": 0.01},
]


ALL = "topk:density=1"  # each of them is sent, in a codec for few


def wide_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 8)
    )


def trained_exactly(rank: int, ours: bool, options: dict) -> list[torch.Tensor]:
    model = Ddp(small_model())
    if ours:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        gradwire.torch.residual(model, optimizer, exact=["*"], **options)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **options)
    train(model, rank, 20, optimizer=optimizer)
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("options", MOMENTA)
def test_without_loss_it_is_torchs_sgd(options):
    plain = on_ranks(2, trained_exactly, False, options)[0]
    for mine, reference in zip(on_ranks(2, trained_exactly, True, options)[0], plain, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-6)


def trained_masked(rank: int, masking: bool) -> list[torch.Tensor]:
    model = Ddp(wide_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    gradwire.torch.residual(
        model, optimizer, small="none", codecs={"2.weight": ALL}, exact=["0.*"], masking=masking
    )
    train(model, rank, 10, optimizer=optimizer)
    return [parameter.detach() for parameter in model.parameters()]


def trained_plainly(rank: int, masking: bool) -> list[torch.Tensor]:
    model = Ddp(wide_model())
    masked = model.module[2].weight
    others = [parameter for parameter in model.parameters() if parameter is not masked]
    groups = [{"params": [masked], "momentum": 0.0 if masking else 0.9}, {"params": others}]
    train(model, rank, 10, optimizer=torch.optim.SGD(groups, lr=0.05, momentum=0.9))
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("masking", [False, True])
def test_masking_ends_the_momentum_of_what_is_sent(masking):
    ours = on_ranks(2, trained_masked, masking)[0]
    for mine, reference in zip(ours, on_ranks(2, trained_plainly, masking)[0], strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-6)


def trained_sparsely(rank: int, steps: int, options: dict):
    model = Ddp(wide_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    gradwire.torch.residual(model, optimizer, 0.01, **options)
    losses = train(model, rank, steps, optimizer=optimizer)
    return digest(model), losses, gradwire.torch.stats(model)


@pytest.mark.parametrize(
    "options",
    [{"values": "fp32"}, {"values": "fp16"}, {"values": "int8"}, {"values": "mean"}, {"reuse": 5}],
)
def test_it_learns_from_one_number_in_a_hundred(options):
    results = on_ranks(3, trained_sparsely, 300, options)
    assert len({bits for bits, *_ in results}) == 1
    for _, losses, stats in results:
        assert sum(losses[-20:]) / 20 < 0.8  # 2.08 at first
        assert stats.layers["2.weight"].ratio > 30
        assert stats.layers["4.weight"].codec.startswith("grid")  # small
        assert stats.layers["2.bias"].codec == "none"


@pytest.mark.parametrize("ramp", [False, True])
def test_it_begins_with_more(ramp):
    warm = on_ranks(2, trained_sparsely, 20, {"warmup": 20, "ramp": ramp})[0][2]
    whole = on_ranks(2, trained_sparsely, 40, {"warmup": 20, "ramp": ramp})[0][2]
    later = whole.layers["2.weight"].sent_bytes - warm.layers["2.weight"].sent_bytes
    assert later * 5 < warm.layers["2.weight"].sent_bytes


def clipped(rank: int, clip: float) -> tuple[float, float]:
    """The norm of one update at a learning rate of 1, and what it should be."""
    model = Ddp(small_model(), bucket_cap_mb=0.01)  # several buckets
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gradwire.torch.residual(model, optimizer, exact=["*"], momentum=0.0, clip=clip)
    alone = small_model()
    expected = [torch.zeros_like(parameter) for parameter in alone.parameters()]
    for other in range(2):
        x, y = next(batches(other, 1))
        gradients = torch.autograd.grad(
            nn.functional.cross_entropy(alone(x), y), list(alone.parameters())
        )
        norm = math.sqrt(sum(g.square().sum().item() for g in gradients))
        scale = min(1.0, clip / math.sqrt(2) / norm) if clip else 1.0
        for total, gradient in zip(expected, gradients, strict=True):
            total += gradient * scale / 2
    before = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, rank, 1, optimizer=optimizer)
    moves = [b - p.detach() for b, p in zip(before, model.parameters(), strict=True)]
    difference = sum((m - e).square().sum().item() for m, e in zip(moves, expected, strict=True))
    return math.sqrt(difference), math.sqrt(sum(e.square().sum().item() for e in expected))


@pytest.mark.parametrize("clip", [0.0, 0.1, 100.0])
def test_each_rank_clips_its_own_gradients(clip):
    for difference, norm in on_ranks(2, clipped, clip):
        assert difference < 1e-5 * norm


def stopped_and_resumed(rank: int, steps: int, state=None):
    model = Ddp(wide_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    if state:
        gradwire.torch.load_state_dict(state[rank][1])
        model.module.load_state_dict(state[rank][0])
    gradwire.torch.residual(model, optimizer, 0.01, warmup=3, reuse=4)
    train(model, rank, steps, 6 if state else 0, optimizer)
    return model.module.state_dict(), gradwire.torch.state_dict()


def test_from_a_checkpoint_it_goes_on_to_the_bit():
    whole = on_ranks(2, stopped_and_resumed, 12)
    again = on_ranks(2, stopped_and_resumed, 6, on_ranks(2, stopped_and_resumed, 6))
    for name, tensor in whole[0][0].items():
        assert torch.equal(again[0][0][name], tensor), name


def held_back(rank: int, states: list | None = None, steps: int = 5):
    """What five steps held back of every number, brought out by an exact step without input."""
    model = Ddp(wide_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    if states:
        state = gradwire.torch.reshard(states, rank, torch.distributed.get_world_size())
        gradwire.torch.load_state_dict(state)
    options = {"momentum": 0.0} if steps == 0 else {"momentum": 0.9}
    gradwire.torch.residual(model, optimizer, 0.01, small="none", **options)
    train(model, rank, steps, optimizer=optimizer)
    if steps:
        return gradwire.torch.state_dict()
    model.zero_grad()
    with gradwire.torch.exact():
        (0.0 * model(next(batches(rank, 1))[0]).sum()).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_nothing_held_back_is_lost_when_ranks_come_or_go(ranks):
    states = on_ranks(3, held_back)
    expected = on_ranks(3, held_back, states, 0)[0]
    assert max(gradient.abs().max() for gradient in expected) > 0.01
    for mine, reference in zip(on_ranks(ranks, held_back, states, 0)[0], expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)


WRONG = [
    {"momentum": 1.0},
    {"momentum": -0.5},
    {"nesterov": True, "momentum": 0.0},
    {"masking": True, "momentum": 0.0},
    {"reuse": 0},
    {"warmup": -5},
    {"clip": -1.0},
    {"weight_decay": math.nan},
]


def sgd(parameters, **options) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, **options)


def cycling(parameters) -> torch.optim.SGD:
    optimizer = sgd(parameters, momentum=0.9)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    return optimizer


def sharded(parameters) -> torch.optim.Optimizer:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of much

    return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)


class Wrapper(torch.optim.Optimizer):
    """As Accelerate has one around every optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups


UNSOUND = [
    (lambda p: torch.optim.AdamW(p), "AdamW"),
    (lambda p: Wrapper(torch.optim.AdamW(p)), "AdamW"),
    (sharded, "a share of the parameters"),
    (lambda p: sgd(p, momentum=0.9, dampening=0.1), "dampening"),
    (lambda p: sgd(p, maximize=True), "maximizes"),
    (lambda p: sgd(p, differentiable=True), "differentiable"),
    (cycling, "cycle_momentum"),
]
"""Optimizers under which residuals would train something else, and a word of the reason."""


def refusals(rank: int) -> list[str]:
    model = Ddp(small_model())
    parameters = list(model.parameters())
    said = []
    for optimizer, options in [
        (torch.optim.SGD(parameters, lr=0.1, momentum=0.9), {}),
        (torch.optim.AdamW(parameters), {}),
        *((make(parameters), {}) for make, _ in UNSOUND),
        (torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1), {"weight_decay": 0.1}),
        (torch.optim.SGD(parameters, lr=0.1), {"density": 2.0}),
        (torch.optim.SGD(parameters, lr=0.1), {"values": "int4"}),
        (torch.optim.SGD(parameters, lr=0.1), {"link": "fast"}),
        *((torch.optim.SGD(parameters, lr=0.1), options) for options in WRONG),
    ]:
        with pytest.raises((TypeError, ValueError, gradwire.Error)) as error:
            gradwire.torch.residual(model, optimizer, **options)
        said.append(str(error.value))
    return said


def test_what_would_be_done_twice_is_refused():
    momentum, method, *others = on_ranks(1, refusals)[0]
    for sentence, (_, reason) in zip(others, UNSOUND, strict=False):
        assert reason in sentence and "another method" not in sentence
    decay, density, values, link, *wrong = others[len(UNSOUND) :]
    assert "momentum=0" in momentum and "momentum=0.9 to gradwire.torch.residual" in momentum
    assert "AdamW" in method and "SGD" in method
    assert "weight_decay=0" in decay
    assert "density" in density
    assert "values" in values
    assert "100mbit" in link
    for sentence, options in zip(wrong, WRONG, strict=True):
        assert next(iter(options)) in sentence
        assert "take" in sentence or "leave" in sentence


# Scripts that say nothing of it

UNCHANGED = {"GRADWIRE": "1", "GRADWIRE_RESIDUAL": "0.01", "GRADWIRE_WARMUP": "4"}


def two_groups(model: nn.Module, **options) -> torch.optim.SGD:
    """Without weight decay for biases, as many have it."""
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.01}]
    return torch.optim.SGD(groups, lr=0.02, **options)


def exactly(rank: int, options: dict) -> list[torch.Tensor]:
    """Layers that travel exactly: all that is left of residual compression is its momentum."""
    model = Ddp(small_model())
    train(model, rank, 20, optimizer=two_groups(model, **options))
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("options", [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.5}, {}])
def test_under_an_unchanged_script_it_does_what_the_optimizer_did(options):
    plain = on_ranks(2, exactly, options)[0]
    ours = on_ranks(2, exactly, options, environment={**UNCHANGED, "GRADWIRE_EXACT": "*"})[0]
    for mine, reference in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(mine, other) for mine, other in zip(ours, plain, strict=True))


def unchanged(rank: int, saved: dict | None = None):
    model = Ddp(wide_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if saved:
        optimizer.load_state_dict(saved)
    losses = train(model, rank, 200, optimizer=optimizer)
    return digest(model), losses, gradwire.torch.stats(model), optimizer.state_dict()


def test_an_unchanged_script_sends_few_numbers():
    results = on_ranks(2, unchanged, environment=UNCHANGED)
    assert len({bits for bits, *_ in results}) == 1
    _, losses, stats, state = results[0]
    assert sum(losses[-20:]) / 20 < 0.8
    assert stats.layers["2.weight"].codec.startswith("topk:density=0.01")
    assert stats.layers["2.weight"].ratio > 20
    (group,) = state["param_groups"]
    assert (group["momentum"], group["gradwire"]["momentum"]) == (0, 0.9)
    resumed = on_ranks(2, unchanged, state, environment=UNCHANGED)
    assert resumed[0][0] == results[0][0]  # it knows what it had taken over


def resumed_without(rank: int, saved: dict) -> str:
    model = Ddp(wide_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    optimizer.load_state_dict(saved)
    with pytest.raises(ValueError) as error:
        train(model, rank, 1, optimizer=optimizer)
    return str(error.value)


def test_a_checkpoint_whose_momentum_was_taken_over_is_not_trained_without():
    state = on_ranks(1, unchanged, environment=UNCHANGED)[0][3]
    said = on_ranks(1, resumed_without, state, environment={"GRADWIRE": "1"})[0]
    assert "momentum=0.9" in said and "--residual again" in said


def of_other_numbers(rank: int, doubles: bool, options: dict) -> str:
    """What is said of a gradient that codecs cannot take; it is in the last bucket."""
    first = nn.Linear(8, 8).double() if doubles else nn.EmbeddingBag(8, 8, sparse=True)
    model = Ddp(nn.Sequential(first, nn.Linear(8, 8)), bucket_cap_mb=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=options.pop("decay", 0.0))
    try:
        if options:
            gradwire.torch.residual(model, optimizer, momentum=0.0, **options)
        inputs = torch.ones(2, 8).double() if doubles else torch.zeros(2, 1, dtype=torch.int64)
        model.module[1].register_forward_pre_hook(lambda _, given: (given[0].float(),))
        model(inputs).sum().backward()
    except TypeError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    "doubles, options, environment",
    [
        (False, {"clip": 1.0}, None),
        (False, {"weight_decay": 0.1}, None),
        (True, {"clip": 1.0}, None),
        (True, {"decay": 0.1}, {"GRADWIRE": "1", "GRADWIRE_RESIDUAL": "0.01"}),
    ],
)
def test_gradients_that_codecs_cannot_take_are_refused(doubles, options, environment):
    said = on_ranks(1, of_other_numbers, doubles, options, environment=environment)[0]
    assert "residual compression" in said and "float32" in said


def unsound(rank: int) -> list[str]:
    said = []
    for make in [
        *(make for make, _ in UNSOUND),
        lambda p: (sgd(p[:1]), sgd(p[1:])),
        lambda p: sgd([{"params": p[:1], "momentum": 0.5}, {"params": p[1:]}]),
        lambda p: sgd([*p, nn.Parameter(torch.ones(2))], momentum=0.9),
        lambda p: None,
    ]:
        model = Ddp(small_model())
        kept = make(list(model.parameters()))
        with pytest.raises(ValueError, match="--residual") as error:
            model(next(batches(rank, 1))[0])
        said.append(str(error.value))
        del kept
    return said


def test_a_script_that_trains_otherwise_is_refused():
    said = on_ranks(1, unsound, environment=UNCHANGED)[0]
    reasons = [
        *(reason for _, reason in UNSOUND),
        "2 optimizers",
        "different",
        "in no Dist",
        "no optim",
    ]
    for sentence, reason in zip(said, reasons, strict=True):
        assert reason in sentence
    for sentence in said[: len(UNSOUND)]:  # gradwire.torch.residual refuses these, too
        assert sentence.endswith("or train by a plain torch.optim.SGD")


def with_one_ignored(rank: int) -> None:
    model = small_model()
    Ddp._set_params_and_buffers_to_ignore_for_model(model, ["3.weight"])
    replica = Ddp(model)
    optimizer = sgd(replica.parameters(), momentum=0.9)
    with pytest.raises(ValueError, match=r"not to exchange the gradient of 3\.weight"):
        replica(next(batches(rank, 1))[0])
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_parameters_that_ddp_ignores_are_not_left_without_momentum():
    on_ranks(1, with_one_ignored, environment=UNCHANGED)


def wrapped(rank: int) -> tuple[str, float]:
    model = Ddp(small_model())
    optimizer = sgd(model.parameters(), momentum=0.9)
    around = Wrapper(optimizer)
    train(model, rank, 2, optimizer=optimizer)
    return digest(model), around.param_groups[0]["momentum"]


def test_wrappers_of_optimizers_are_looked_through():
    assert on_ranks(1, wrapped, environment=UNCHANGED)[0][1] == 0


def two_models(rank: int) -> list[int]:
    first, second = Ddp(small_model(0)), Ddp(small_model(1))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = sgd([*first.parameters(), *second.parameters(), frozen], momentum=0.9)
    for model in (first, second):
        train(model, rank, 2, optimizer=optimizer)
    return [gradwire.torch.stats(model).steps for model in (first, second)]


def test_two_models_may_have_one_optimizer():
    assert on_ranks(2, two_models, environment=UNCHANGED) == [[2, 2]] * 2


class Several(torch.optim.Optimizer):
    """As scripts have them: it has no parameters of its own, not even the attribute."""

    def __init__(self, *optimizers: torch.optim.Optimizer):
        self.optimizers = optimizers

    def zero_grad(self):
        for each in self.optimizers:
            each.zero_grad()

    def step(self):
        for each in self.optimizers:
            each.step()


def with_several(rank: int) -> int:
    model = Ddp(small_model())
    train(model, rank, 2, optimizer=Several(sgd(model.parameters(), momentum=0.9)))
    return gradwire.torch.stats(model).steps


@pytest.mark.parametrize("environment", [{"GRADWIRE": "1"}, UNCHANGED])
def test_optimizers_without_parameters_are_no_obstacle(environment):
    assert on_ranks(1, with_several, environment=environment) == [2]


# -------------------------------------------------------------------------------------------------
# Several backward passes for one step


def in_parts(rank: int, ours: bool, apart: bool, to_none: bool, as_view: bool) -> torch.Tensor:
    model = Ddp(small_model(), gradient_as_bucket_view=as_view)
    optimizer = sgd(model.parameters(), momentum=0.0 if ours else 0.9)
    if ours:
        gradwire.torch.residual(model, optimizer, momentum=0.9, exact=["*"])
    for i, (x, y) in enumerate(batches(rank, 8)):
        with model.no_sync() if apart and i % 2 == 0 else contextlib.nullcontext():
            nn.functional.cross_entropy(model(x), y).backward()
        if i % 2 == 1:
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("as_view", [True, False])
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_may_be_added_up_before_they_are_exchanged(to_none, as_view):
    plain = on_ranks(2, in_parts, False, True, to_none, as_view)[0]
    for mine in on_ranks(2, in_parts, True, True, to_none, as_view):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5)


def in_exchanged_parts(rank: int, to_none: bool, as_view: bool) -> None:
    with pytest.raises(ValueError, match=r"put `with model.no_sync\(\):` around all but the last"):
        in_parts(rank, True, False, to_none, as_view)


@pytest.mark.parametrize("as_view", [True, False])
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_enter_momentum_twice_are_refused(to_none, as_view):
    on_ranks(2, in_exchanged_parts, to_none, as_view)


# -------------------------------------------------------------------------------------------------
# Parameters that are not contiguous

LAYOUTS = {
    "contiguous": lambda: torch.randn(8, 12, 3, 5),
    "channels_last": lambda: torch.randn(8, 12, 3, 5).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(48, 40).t(),
    "permuted": lambda: torch.randn(4, 30, 12).permute(2, 0, 1),
    "with gaps": lambda: torch.randn(48, 80)[:, ::2],
    "from expanded": lambda: torch.randn(48, 1).expand(48, 40).clone(),
    "behind others": lambda: torch.randn(60, 40)[12:],
}


class Laid(nn.Module):
    """Two parameters in one layout; only the second one has gradients other than zero."""

    def __init__(self, layout: str):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Parameter(LAYOUTS[layout]()) for _ in range(2))

    def forward(self, factor: torch.Tensor):
        return 0.0 * self.first.sum() + (self.second * factor).sum()


def laid_out(rank: int, layout: str, ours: bool, options: dict) -> list[torch.Tensor]:
    model = Ddp(Laid(layout))
    taken = {key: options[key] for key in ("momentum", "weight_decay", "nesterov")}
    optimizer = sgd(model.parameters(), **({} if ours else taken))
    if ours:
        gradwire.torch.residual(model, optimizer, exact=["*"], **options)
    torch.manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn_like(model.module.second)).backward()
        optimizer.step()
    return [parameter.detach().contiguous() for parameter in model.parameters()]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("clip", [0.0, 1e6])
def test_weight_decay_reaches_its_own_weight_in_every_layout(layout, clip):
    options = {"momentum": 0.9, "weight_decay": 0.1, "nesterov": clip > 0, "clip": clip}
    plain = on_ranks(2, laid_out, layout, False, options)[0]
    ours = on_ranks(2, laid_out, layout, True, options)
    for first, second, reference in zip(*ours, plain, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, reference, rtol=1e-4, atol=1e-5)
