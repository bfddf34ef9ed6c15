"""The layers of a model, under the names that its author gave them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.fsdp import FSDPModule

from ._native import Layer, is_supported

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""What torch.compile and activation checkpointing put between the names of modules."""


def unwrapped(model: nn.Module) -> nn.Module:
    """What was given to torch.compile, or the model itself."""
    while "_orig_mod" in getattr(model, "_modules", ()):
        model = model._orig_mod
    return model


def named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """As ``named_parameters()``, without the names of wrappers."""
    for name, parameter in model.named_parameters():
        yield ".".join(part for part in name.split(".") if part not in _WRAPPERS), parameter


def with_sparse_gradients(model: nn.Module) -> set[nn.Parameter]:
    """Those that DDP averages exactly, as sparse tensors."""
    return {
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }


def described(model: nn.Module) -> list[Layer]:
    """For those who decide how they travel."""
    sparse = with_sparse_gradients(model)
    return [
        describe(name, each, "its gradients are sparse" if each in sparse else "")
        for name, each in named(model)
    ]


def describe(name: str, parameter: nn.Parameter, obstacle: str = "") -> Layer:
    if not is_supported(parameter.real):  # a complex number is two of these
        obstacle = f"no codec takes {parameter.dtype}".replace("torch.", "")
    return Layer(name, parameter.numel(), parameter.dim(), obstacle)


def title(model: nn.Module) -> str:
    """The name of the model's class."""
    kind = type(unwrapped(model))
    return (kind.__bases__[-1] if issubclass(kind, FSDPModule) else kind).__name__
