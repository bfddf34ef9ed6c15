"""What runs at the end of every ``import torch``, by the entry point group ``torch.backends``.

It must never fail, and cost next to nothing where gradwire is not used: so it stands beside the
package, of which nothing is imported before it is needed.
"""

from __future__ import annotations

import functools
import os


def autoload() -> None:
    """Makes the backend known, and with ``GRADWIRE=1`` watches for models to compress."""
    try:
        register()
        if os.environ.get("GRADWIRE", "0") not in ("", "0"):
            watch()
    except Exception as error:  # an exception here would end `import torch`
        import warnings

        warnings.warn(f"gradwire is not available: {error}", RuntimeWarning, stacklevel=2)


def register() -> None:
    """Makes ``torch.distributed.init_process_group("gradwire")`` work."""
    from torch import distributed

    if distributed.is_available() and not hasattr(distributed.Backend, "GRADWIRE"):
        distributed.Backend.register_backend(
            "gradwire", _create, extended_api=True, devices=["cpu", "cuda"]
        )


def _create(options, given):
    from gradwire.torch.backend import create

    return create(options, given)


def watch() -> None:
    """From now on, DDP models are looked at before their first forward pass."""
    import torch
    from torch.nn.parallel import DistributedDataParallel as Ddp

    if hasattr(Ddp, "_gradwire_watched"):
        return
    Ddp._gradwire_watched = True

    @torch.compiler.disable
    def before_first_forward(model):
        from gradwire.torch.ddp import before_first_forward

        before_first_forward(model)

    def hook_of_user(model, *hook):
        from gradwire.torch.ddp import take_hook_of_user

        return take_hook_of_user(model, *hook)

    @_around(Ddp, "_lazy_init")
    def _lazy_init(original, model):
        original(model)
        before_first_forward(model)

    @_around(Ddp, "register_comm_hook")
    def register_comm_hook(original, model, state, hook):
        if not hook_of_user(model, state, hook):
            original(model, state, hook)

    @_around(Ddp, "_register_builtin_comm_hook")
    def _register_builtin_comm_hook(original, model, hook):
        if not hook_of_user(model, hook):
            original(model, hook)


def _around(kind, name):
    """Replaces the method by one that gets the original as its first argument."""
    original = getattr(kind, name)

    def replace(replacement):
        @functools.wraps(original)
        def method(*args, **kwargs):
            return replacement(original, *args, **kwargs)

        setattr(kind, name, method)
        return method

    return replace
