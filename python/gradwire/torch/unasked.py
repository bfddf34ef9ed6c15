"""Models that are compressed although their script does not say so: by ``GRADWIRE=1``, which
``gradwire run`` sets, or by the backend of their process group."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from torch import distributed

from . import channels, report, settings
from ._native import Backend

_log = logging.getLogger("gradwire")


def is_asked_for(groups: Iterable[distributed.ProcessGroup], device: str) -> bool:
    """Whether a model is compressed that these groups train on this device."""
    backends = (channels.backend_of(group, device) for group in groups)
    return settings.is_on() or any(isinstance(each, Backend) for each in backends)


def leave_alone(title: str, why: str) -> None:
    _log.warning("gradwire leaves %s alone: it %s", title, why)
    report.obstacle(f"{title} {why}")
