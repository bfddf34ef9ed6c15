"""What runs at the end of every ``import torch``, by the entry point group ``torch.backends``.

It must never fail, and cost next to nothing where gradwire is not used: so it stands beside the
package, of which nothing is imported before it is needed.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import math
import os
import sys
from contextlib import suppress
from pathlib import Path

_REPORTER = "_GRADWIRE_REPORTER"
"""Has the number of the process that a launcher started as a rank: its children inherit it, and
know by it that they are none."""
_SETTINGS = tuple(
    f"GRADWIRE_{name}"
    for name in ("CODEC", "EXACT", "PLAN", "RESIDUAL", "WARMUP", "CLIP", "TRACE", "CONNECT_TIMEOUT")
)
"""Whoever sets one of these wants something compressed."""


def autoload() -> None:
    """Makes the backend known, and with ``GRADWIRE=1`` watches for models to compress."""
    try:
        resolve_paths()
        register()
        if _is_set("GRADWIRE"):
            watch()
            _watch_groups()
        elif _is_wanted():
            _watch_groups()
    except Exception as error:  # an exception here would end `import torch`
        import warnings

        warnings.warn(f"gradwire is not available: {error}", RuntimeWarning, stacklevel=2)


def resolve_paths() -> None:
    """Paths in variables are those of the folder in which a program starts, wherever it goes later
    and in its children."""
    for name in ("GRADWIRE_PLAN", "GRADWIRE_TRACE"):
        if os.environ.get(name):
            with suppress(OSError):  # the folder is gone
                os.environ[name] = os.path.abspath(os.environ[name])


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def _is_wanted() -> bool:
    """Whether somebody who did not set ``GRADWIRE=1`` will wonder why nothing was compressed."""
    if summary := os.environ.get("GRADWIRE_SUMMARY"):
        return summary == "1"
    return not os.environ.get("GRADWIRE") and any(map(_is_set, _SETTINGS))


def register() -> None:
    """Makes ``torch.distributed.init_process_group("gradwire")`` work."""
    from torch import distributed

    if distributed.is_available() and not hasattr(distributed.Backend, "GRADWIRE"):
        distributed.Backend.register_backend(
            "gradwire", _create, extended_api=True, devices=["cpu", "cuda"]
        )


def _create(options, given):
    return _part("backend").create(options, given)


def watch() -> None:
    """From now on, DDP models are looked at before their first forward pass that can be trained by
    (one rank alone may evaluate a model), and what scripts do to their gradients that compression
    does not go with.
    """
    from torch.nn.parallel import DistributedDataParallel as Ddp

    if hasattr(Ddp, "_gradwire_watched"):
        return
    Ddp._gradwire_watched = True
    _watch_models(Ddp)
    _watch_scalers()


def _watch_models(Ddp) -> None:
    import torch

    @torch.compiler.disable
    def before_first_forward(model):
        _part("ddp").before_first_forward(model)

    def hook_of_user(model, *hook):
        return _part("ddp").take_hook_of_user(model, *hook)

    @_around(Ddp, "_lazy_init")
    def _lazy_init(original, model):
        if torch.is_grad_enabled():
            original(model)
            before_first_forward(model)

    @_around(Ddp, "__setstate__")
    def __setstate__(original, model, state):
        original(model, state)
        model._lazy_init_ran = False  # a copy has a reducer of its own, without a hook

    @_around(Ddp, "_register_accum_grad_hook")
    def _register_accum_grad_hook(original, model):
        original(model)
        _part("ddp").before_python_reducer(model)

    @_around(Ddp, "register_comm_hook")
    def register_comm_hook(original, model, state, hook):
        if not hook_of_user(model, state, hook):
            original(model, state, hook)
            _part("ddp").keeps_hook_of_user(model)

    @_around(Ddp, "_register_builtin_comm_hook")
    def _register_builtin_comm_hook(original, model, hook):
        if not hook_of_user(model, hook):
            original(model, hook)
            _part("ddp").keeps_hook_of_user(model)

    @_around(Ddp, "join_hook")
    def join_hook(original, model, **options):
        before_first_forward(model)  # in which a rank without inputs never comes
        _part("ddp").before_join(model, options.get("divide_by_initial_world_size", True))
        return original(model, **options)


def _watch_scalers() -> None:
    from torch.amp import GradScaler

    @_around(GradScaler, "scale")
    def scale(original, scaler, outputs):
        if scaler.is_enabled():
            _part("compressions").check_scaler()
        return original(scaler, outputs)


@functools.cache
def watch_clipping() -> None:
    """From now on, `ddp.takes_over_clipping` is asked before gradients are clipped. Only residual
    compression needs that, and `torch.compile(fullgraph=True)` cannot look through it.
    """
    from torch.nn.utils import clip_grad

    takes_over = _part("ddp").takes_over_clipping

    @_inside(clip_grad._clip_grads_with_norm_)
    def clip_with_norm(original, parameters, max_norm, *rest, **options):
        parameters = _listed(parameters)
        if not takes_over(parameters, float(max_norm)):
            original(parameters, max_norm, *rest, **options)

    @_inside(clip_grad.clip_grad_norm_)
    def clip_norm(original, parameters, max_norm, norm_type=2.0, *rest, **options):
        parameters = _listed(parameters)
        if float(norm_type) != 2.0 and float(max_norm) != math.inf:
            takes_over(parameters, None, f"clip_grad_norm_ with norm_type={norm_type}")
        return original(parameters, max_norm, norm_type, *rest, **options)

    @_inside(clip_grad.clip_grad_value_)
    def clip_value(original, parameters, *rest, **options):
        parameters = _listed(parameters)
        takes_over(parameters, None, "clip_grad_value_")
        original(parameters, *rest, **options)


def _listed(parameters) -> list:
    import torch

    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _watch_groups() -> None:
    """From now on, ranks say at the end why nothing was compressed, if nothing was."""
    from torch import distributed

    if not distributed.is_available() or hasattr(distributed, "_gradwire_watched"):
        return
    from torch.distributed import device_mesh, distributed_c10d

    distributed._gradwire_watched = True

    @_around(distributed_c10d, "init_process_group")
    def init_process_group(original, *args, **kwargs):
        original(*args, **kwargs)
        atexit.unregister(_say_that_there_was_no_group)
        if _is_set("GRADWIRE"):
            _part("fsdp").watch()
            _part("report").joined(distributed.get_rank(), distributed.get_world_size())
        elif distributed.get_rank() == 0:
            _will_say_that_it_is_off(os.getpid())

    distributed.init_process_group = init_process_group
    device_mesh.init_process_group = init_process_group  # `init_device_mesh` makes groups, too
    if "RANK" in os.environ:
        os.environ.setdefault(_REPORTER, str(os.getpid()))
        atexit.register(_say_that_there_was_no_group)


def _say_that_there_was_no_group() -> None:
    is_first = os.environ["RANK"] == "0" and os.environ.get(_REPORTER) == str(os.getpid())
    wanted = os.environ.get("GRADWIRE_SUMMARY") == "1"
    if not (is_first and wanted) or "gradwire.torch.report" in sys.modules:
        return
    one = os.environ.get("WORLD_SIZE") == "1"
    _say_that_nothing_was("there is one rank" if one else "the script made no process group")


@functools.cache
def _will_say_that_it_is_off(process: int) -> None:
    """At the end of this process, which may be the child of one that will, too."""
    at_end(_say_that_it_is_off)


def _say_that_it_is_off() -> None:
    report = sys.modules.get("gradwire.torch.report")
    if report is None or not report.has_its_own_words():
        _say_that_nothing_was("GRADWIRE=1 is not set")


def _say_that_nothing_was(why: str) -> None:
    sys.stderr.write(f"gradwire: nothing was compressed, because {why}\n")  # at once, as in report
    sys.stderr.flush()


def at_end(function) -> None:
    """Calls it once at the end of this process, and not of its children. Those that
    multiprocessing forks end by `os._exit`, which skips `atexit`.
    """
    from multiprocessing.util import Finalize

    process = os.getpid()

    @functools.cache
    def once():
        if os.getpid() == process:
            function()

    atexit.register(once)
    Finalize(None, once, exitpriority=0)


def _part(name):
    """A module of `gradwire.torch`."""
    if "gradwire.torch" not in sys.modules and (stranger := _stranger()) is not None:
        raise ImportError(
            f"{stranger} hides the package gradwire from this program, as Python looks beside the "
            "script first: give it another name"
        )
    return importlib.import_module(f"gradwire.torch.{name}")


def _stranger() -> str | None:
    """What has the name of the package and is not it."""
    spec = importlib.util.find_spec("gradwire")
    if spec is None or spec.origin is None:
        return None
    own = Path(__file__).parent / "gradwire" / "__init__.py"
    return None if own.exists() and own.samefile(spec.origin) else spec.origin


def _around(kind, name):
    """Replaces a method, or a function of a module, by one that gets the original as its first
    argument."""
    original = getattr(kind, name)

    def replace(replacement):
        @functools.wraps(original)
        def method(*args, **kwargs):
            return replacement(original, *args, **kwargs)

        setattr(kind, name, method)
        return method

    return replace


def _inside(function):
    """As `_around`, for what a decorator has wrapped: scripts may have imported the function long
    before."""
    (cell,) = function.__closure__
    original = cell.cell_contents

    def replace(replacement):
        cell.cell_contents = functools.partial(replacement, original)

    return replace
