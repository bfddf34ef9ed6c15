"""Few numbers of every gradient, and the rest later: RedSync's residual compression."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import optimizers, settings

LEAST_ELEMENTS = 16384
"""Smaller layers are not worth selecting from: `small` takes them."""

RAMP = (0.25, 0.0625, 0.015625, 0.004)
"""Densities on the way to that of the job, as Deep Gradient Compression has them."""


@dataclass(frozen=True)
class Settings(settings.Settings):
    """What `gradwire.torch.residual` takes."""

    feedback: bool = True
    density: float = 0.001
    values: str = "fp32"
    small: str = settings.DEFAULT_CODEC
    warmup: int = 0
    ramp: bool = False

    def codec_of(self, name: str, parameter: torch.nn.Parameter) -> str:
        usual = self.small if parameter.numel() < LEAST_ELEMENTS else self.sparse(self.density)
        return self.fixed_codec_of(name, parameter) or usual

    def stages_of(self, name: str, parameter: torch.nn.Parameter) -> list[tuple[int, str]]:
        last = self.codec_of(name, parameter)
        if self.warmup == 0 or last != self.sparse(self.density):
            return [(0, last)]
        if not self.ramp:
            return [(0, self.small), (self.warmup, last)]
        densities = [density for density in RAMP if density > self.density]
        part = self.warmup / max(1, len(densities))
        stages = [(round(i * part), self.sparse(d)) for i, d in enumerate(densities)]
        return [*stages, (self.warmup, last)]

    def sparse(self, density: float) -> str:
        return f"topk:density={density},values={self.values}"


def for_script(model: torch.nn.Module, density: float) -> Settings:
    """For a model whose script says nothing of it: its optimizer says how it is to be trained.

    Raises `optimizers.NotSound` where that is not what residuals do.
    """
    usual = settings.from_environment()
    taken = optimizers.take_over(model)
    return Settings(
        exact=usual.exact,
        small=usual.codec,
        density=density,
        warmup=settings.warmup(),
        momentum=taken.momentum,
        nesterov=taken.nesterov,
        weight_decay=taken.weight_decay,
    )


def check_optimizer(optimizer: torch.optim.Optimizer, chosen: Settings) -> None:
    """Raises when it would do again what residuals have done already."""
    if not isinstance(optimizer, torch.optim.SGD):
        raise TypeError(
            f"residual compression has the momentum of SGD, and {type(optimizer).__name__} is "
            "another method; take torch.optim.SGD, or gradwire.torch.compress(model) without it"
        )
    for group in optimizer.param_groups:
        if group["momentum"] and chosen.momentum:
            raise ValueError(
                f"the optimizer's momentum of {group['momentum']} would be applied twice: make the "
                f"optimizer with momentum=0, and pass momentum={group['momentum']} to "
                "gradwire.torch.residual"
            )
        if group["weight_decay"] and chosen.weight_decay:
            raise ValueError(
                f"the optimizer's weight decay of {group['weight_decay']} would be added to "
                f"{chosen.weight_decay}: make the optimizer with weight_decay=0"
            )


def check_parameters(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(
                f"residual compression takes float32, float16 and bfloat16, and {name} is of "
                f"{parameter.dtype}; convert it"
            )
