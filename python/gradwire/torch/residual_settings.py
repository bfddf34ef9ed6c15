"""Few numbers of every gradient, and the rest later: RedSync's residual compression."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel

from gradwire.ranks import check_number

from . import optimizers, settings, steps
from ._native import DensePolicy, Layer, Plan, SparsePolicy


@dataclass(frozen=True)
class Settings(settings.Settings):
    """What `gradwire.torch.residual` takes."""

    density: float = 0.001
    values: str = "fp32"
    codec: str = settings.DEFAULT_CODEC
    small: str = settings.DEFAULT_CODEC
    warmup: int = 0
    ramp: bool = False
    link: str = "100mbit"
    ranks: int = 2

    def plan_for(self, layers: list[Layer]) -> Plan:
        return self.policy().plan_for(layers)

    def has_feedback(self) -> bool:
        return True

    def policy(self) -> SparsePolicy:
        """Raises for values that are none."""
        keys = {
            "momentum": self.momentum,
            "nesterov": int(self.nesterov),
            "masking": int(self.masking),
            "reuse": self.reuse,
        }
        feedback = "+feedback:" + ",".join(f"{key}={value}" for key, value in keys.items())
        plain = settings.without_feedback
        others = [(pattern, plain(way) + feedback) for pattern, way in self.codecs.items()]
        return SparsePolicy(
            DensePolicy(plain(self.small) + feedback, self.exact, others),
            density=self.density,
            values=self.values,
            warmup=self.warmup,
            ramp=self.ramp,
            ranks=self.ranks,
            link=self.link,
        )


def for_script(model: DistributedDataParallel, density: float) -> Settings:
    """For a model whose script says nothing of it: its optimizer says how it is to be trained.

    Raises `optimizers.NotSound` where that is not what residuals do.
    """
    usual = settings.from_environment()
    check_parameters(model)
    taken = optimizers.take_over(model.module)
    check = functools.partial(optimizers.check_taken_over, taken=taken.groups)
    steps.expect(model, taken.optimizer, check, optimizers.was_taken_from)
    return Settings(
        ranks=model.process_group.size(),
        exact=usual.exact,
        small=settings.codec_beside_residuals(),
        density=density,
        warmup=settings.warmup(),
        clip=settings.clip(),
        momentum=taken.momentum,
        nesterov=taken.nesterov,
        weight_decay=taken.weight_decay,
    )


def check_numbers(chosen: Settings) -> None:
    for name in ("density", "momentum", "weight_decay", "clip"):
        check_number(name, getattr(chosen, name), "a number")
    if not isinstance(chosen.link, str):
        raise TypeError(f"link is {chosen.link!r}; give its rate as a text, such as '100mbit'")
    if not 0 <= chosen.momentum < 1:
        raise ValueError(f"momentum is {chosen.momentum}; take 0 to below 1")
    if chosen.momentum == 0 and (chosen.nesterov or chosen.masking):
        raise ValueError("nesterov and masking are for momentum; leave them out, or set momentum")
    for name in ("warmup", "reuse"):
        if not hasattr(getattr(chosen, name), "__index__"):
            raise TypeError(f"{name} is {getattr(chosen, name)!r}; take a whole number of steps")
    if chosen.reuse < 1:
        raise ValueError(f"reuse is {chosen.reuse}; take 1 or more steps")
    for name in ("warmup", "clip", "weight_decay"):
        if not getattr(chosen, name) >= 0:
            raise ValueError(f"{name} is {getattr(chosen, name)}; take 0 or more")


def check_trains(
    optimizer: torch.optim.Optimizer, model: DistributedDataParallel, chosen: Settings
) -> None:
    """Raises when it does not train the model, or others without the momentum that they need."""
    optimizer = optimizers.unwrapped(optimizer)
    found = None
    if not optimizers.trains(optimizer, model):
        found = "its optimizer has none of the model's parameters", "give the model's optimizer"
    elif chosen.momentum or chosen.weight_decay:
        found = optimizers.unexchanged(optimizer, [True] * len(optimizer.param_groups))
    if found:
        why, what_to_do = found
        raise ValueError(
            f"residual compression does not go with this training: {why}; {what_to_do}"
        )


def expect_optimizer(
    optimizer: torch.optim.Optimizer, model: DistributedDataParallel, chosen: Settings
) -> None:
    """From now on, all that is checked here is checked at every step."""
    check = functools.partial(check_optimizer, chosen=chosen)
    steps.expect(model, optimizer, check, lambda _: bool(chosen.momentum or chosen.weight_decay))


def check_optimizer(optimizer: torch.optim.Optimizer, chosen: Settings) -> None:
    """Raises when it would do other than residuals expect, or again what they have done."""
    optimizer = optimizers.unwrapped(optimizer)
    if why := optimizers.obstacle(optimizer):
        raise TypeError(
            f"residual compression does not go with this training: {why}; take a plain "
            "torch.optim.SGD, or gradwire.torch.compress(model)"
        )
    for group in optimizer.param_groups:
        if group["momentum"] and chosen.momentum:
            raise ValueError(
                f"the optimizer's momentum of {group['momentum']} would be applied twice: make the "
                f"optimizer with momentum=0, and pass momentum={group['momentum']} to "
                "gradwire.torch.residual. If a checkpoint has brought it back, set "
                "group['momentum'] = 0 in optimizer.param_groups after loading, and call "
                "optimizer.state.clear()"
            )
        if group["weight_decay"] and chosen.weight_decay:
            raise ValueError(
                f"the optimizer's weight decay of {group['weight_decay']} would be added to "
                f"{chosen.weight_decay}: make the optimizer with weight_decay=0"
            )
    if chosen.momentum and optimizers.has_gained_momentum(optimizer):
        raise ValueError(
            "the optimizer has momentum buffers, of a training without residual compression, which "
            "would be left unused: make a new optimizer, or call optimizer.state.clear()"
        )


def check_parameters(model: DistributedDataParallel) -> None:
    """Raises when some would train without the momentum that residuals have."""
    for name, parameter in model.module.named_parameters():
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(
                f"residual compression takes float32, float16 and bfloat16, and {name} is of "
                f"{parameter.dtype}; convert it"
            )
        if parameter.requires_grad and name in model.parameters_to_ignore:
            raise ValueError(
                f"residual compression has the momentum of all parameters, and DDP was told not to "
                f"exchange the gradient of {name} with the others; freeze it, or do not tell so"
            )
