"""Whether the native module fits the torch that is installed; asked before it is loaded.

PyTorch's C++ interface changes with every minor version. A module built for another one fails to
load for want of a symbol, or worse, loads. The build records in ``_built_for.py`` what it was for.
"""

from __future__ import annotations

from importlib import import_module

_TOOLS = "pip install scikit-build-core nanobind"
INSTALL = f"{_TOOLS} && pip install --no-build-isolation ."
_REBUILD = f"{_TOOLS} && pip install --no-build-isolation --force-reinstall --no-deps ."


def check() -> None:
    """Raises `ImportError` with one sentence that says what to do, unless torch is there and the
    native module was built for its minor version."""
    version = _version_of_torch()
    if version is None:
        raise _refusal("it needs PyTorch; install it with: pip install 'torch==2.13.*'")
    try:
        built_for = import_module("gradwire.torch._built_for").TORCH
    except ModuleNotFoundError:
        raise _refusal(
            "gradwire was built where there was no PyTorch; build it again, in its source tree, "
            f"with: {_REBUILD}"
        ) from None
    if _minor(version) != _minor(built_for):
        raise _refusal(
            f"gradwire was built for torch {built_for}, and this is torch {version}; "
            f"install torch=={_minor(built_for)}.* or build gradwire again, in its source tree, "
            f"with: {_REBUILD}"
        )


def _version_of_torch() -> str | None:
    try:
        # Where there is no torch, a folder of that name on the path (our source tree has one)
        # passes for a package, and has no version.
        return getattr(import_module("torch"), "__version__", None)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None


def _minor(version: str) -> str:
    """``2.13`` of ``2.13.0+cpu`` and of ``2.13.0a0+git1234``."""
    return ".".join(version.split(".")[:2])


def _refusal(reason: str) -> ImportError:
    return ImportError(f"gradwire.torch cannot be imported: {reason}", name="gradwire.torch")
