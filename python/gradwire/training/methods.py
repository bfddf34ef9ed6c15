"""The ways to exchange gradients, by name.

gloo            as DistributedDataParallel does it: fp32
fp16            torch's fp16_compress_hook over gloo
bf16            the same in bfloat16; torch's own hook of that name needs NCCL
powersgd        torch's PowerSGD hook over gloo, rank 1; powersgd:rank=2 and so on
auto            gradwire, which finds out by itself
adapt           gradwire, by grid as fine as each layer needs it
SPEC            gradwire with a codec, such as grid:step=0.5
SPEC+feedback   the same with error feedback
residual        gradwire.torch.residual; residual:density=0.001,warmup=100,values=fp32 and so on,
                with its arguments. For SGD, whose momentum and weight decay it takes over
"""

import re

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

RESIDUAL = re.compile(r"residual(?::(.+))?")
RESIDUAL_OPTIONS = {
    "density": float,
    "momentum": float,
    "masking": int,
    "warmup": int,
    "ramp": int,
    "clip": float,
    "values": str,
}
POWERSGD = re.compile(r"powersgd(?::rank=([1-9][0-9]*))?")
POWERSGD_FIRST_STEP = 2  # torch refuses less: DDP rebuilds its buckets after the first step
ONE_BUCKET_MB = 1 << 20
HOOKS = ("fp16", "bf16")


def is_gradwire(method: str) -> bool:
    """Whether a codec of gradwire carries the gradients."""
    return method not in ("gloo", *HOOKS) and POWERSGD.fullmatch(method) is None


def is_residual(method: str) -> bool:
    return RESIDUAL.fullmatch(method) is not None


def add_residual(
    replica: DistributedDataParallel,
    optimizer: torch.optim.SGD,
    method: str,
    seed: int,
    link: str | None = None,
) -> None:
    """Takes momentum and weight decay over from the optimizer, unless they are set to 0."""
    import gradwire.torch

    settings = RESIDUAL.fullmatch(method)[1]
    pairs = (pair.split("=", 1) for pair in settings.split(",")) if settings else ()
    options = {key: RESIDUAL_OPTIONS[key](value) for key, value in pairs}
    if link is not None:
        options["link"] = link
    (group,) = optimizer.param_groups
    taken = {key: group[key] for key in ("momentum", "weight_decay")} | options
    for key in ("momentum", "weight_decay"):
        if taken[key]:
            group[key] = 0
    gradwire.torch.residual(replica, optimizer, **taken, seed=seed)


def distribute(model: nn.Module, method: str, seed: int) -> DistributedDataParallel:
    """The model on all ranks of the default group, whose gradients travel by a method."""
    if powersgd := POWERSGD.fullmatch(method):
        return _with_powersgd(model, int(powersgd[1] or 1), seed)
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if method == "fp16":
        replica.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method == "bf16":
        replica.register_comm_hook(None, bf16_hook)
    elif is_gradwire(method) and not is_residual(method):
        import gradwire.torch

        gradwire.torch.compress(replica, method, seed=seed)
    return replica


def _with_powersgd(model: nn.Module, rank: int, seed: int) -> DistributedDataParallel:
    """One bucket alone: the hook starts its second and third exchange of a bucket whenever the one
    before has ended, so with several the order differs from rank to rank, and gloo aborts."""
    replica = DistributedDataParallel(
        model, gradient_as_bucket_view=True, bucket_cap_mb=ONE_BUCKET_MB
    )
    state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=POWERSGD_FIRST_STEP,
        random_seed=seed,
    )
    replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return replica


def bf16_hook(_: object, bucket: dist.GradBucket) -> Future[Tensor]:
    """What torch's bf16_compress_hook does, which refuses a torch without NCCL."""
    buffer = bucket.buffer()
    small = buffer.to(torch.bfloat16).div_(dist.get_world_size())
    arrived = dist.all_reduce(small, async_op=True).get_future()
    return arrived.then(lambda done: buffer.copy_(done.value()[0]))
