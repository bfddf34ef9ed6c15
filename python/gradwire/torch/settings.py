"""How gradients travel unless a program says otherwise, and the variables that say so.

The only place where the PyTorch side reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gradwire.ranks import json_of

from ._native import DensePolicy, Layer, Plan, Way, make_trace_folder, matches

Number = TypeVar("Number", int, float)

AUTO = "auto"
"""In the place of a codec: what steps take decides."""
ADAPT = "adapt"
"""In the place of a codec: `DEFAULT_CODEC`, as fine as each layer needs it."""
DEFAULT_CODEC = "grid:step=0.5"
"""Of what is not decided so: single tensors, and small layers beside residual compression."""

_WHY_NO_MOMENTUM = (
    "has momentum, which would be added to the optimizer's own: leave it out; "
    "gradwire.torch.residual has momentum, and sees to the optimizer's"
)

_plans: dict[str, Plan] = {}
"""By their texts. Those that were read know where their entries stand, for messages."""


@dataclass(frozen=True)
class Settings:
    """What `gradwire.torch.compress` takes."""

    codec: str = AUTO
    """The way of all layers that are worth it, `AUTO` or `ADAPT`."""
    exact: tuple[str, ...] = ()
    codecs: Mapping[str, str] = field(default_factory=dict)
    """Ways by pattern."""
    seed: int = 0
    momentum: float = 0.0
    nesterov: bool = False
    masking: bool = False
    """Whether momentum ends where something was sent."""
    weight_decay: float | Mapping[str, float] = 0.0
    """The same for all parameters, or by name."""
    reuse: int = 1
    """Steps for which a sparse codec is fitted to the numbers."""
    clip: float = 0.0
    """Of all gradients' norm together; 0: never."""
    plan: str = ""
    """The text of a plan, which takes the place of codec and patterns."""

    @property
    def decides(self) -> bool:
        """Whether the training itself decides how gradients travel, or how fine."""
        return self.codec in (AUTO, ADAPT) and not self.plan

    @property
    def adapted(self) -> str | None:
        """The way that is adapted to each layer; none where plans are tried, too."""
        return DEFAULT_CODEC if self.codec == ADAPT else None

    @property
    def way(self) -> str:
        """At the beginning, of all layers that are worth it."""
        return {AUTO: "none", ADAPT: DEFAULT_CODEC}.get(self.codec, self.codec)

    def plan_for(self, layers: list[Layer]) -> Plan:
        """How the gradient of every layer travels, and why."""
        if self.plan:
            return parsed_plan(self.plan)
        return DensePolicy(self.way, self.exact, list(self.codecs.items())).plan_for(layers)

    def has_feedback(self) -> bool:
        """Whether exchanges may leave something for later ones."""
        if self.plan:
            return parsed_plan(self.plan).has_feedback()
        return any(Way(text).has_feedback for text in (self.way, *self.codecs.values()))

    def weight_decay_of(self, name: str) -> float:
        decay = self.weight_decay
        return decay.get(name, 0.0) if isinstance(decay, Mapping) else decay

    def check_patterns(self, names: list[str]) -> None:
        """Raises when one matches none of a model's parameters, as one with a typing error does."""
        if self.plan:
            parsed_plan(self.plan).check_matches(names)
        unmatched = [
            pattern
            for pattern in (*self.exact, *self.codecs)
            if not any(matches(pattern, name) for name in names)
        ]
        if unmatched:
            raise ValueError(
                f"no parameter matches {', '.join(map(repr, unmatched))}; there are, for instance, "
                + ", ".join(names[:5])
            )


def from_kept(kept: Mapping[str, Any]) -> Settings:
    """Of a copy of a model. In earlier versions feedback was a setting for all layers; now it is
    part of every way.
    """
    kept = dict(kept)
    if kept.pop("feedback", False):
        kept["codec"] += "+feedback"
        kept["codecs"] = {pattern: f"{way}+feedback" for pattern, way in kept["codecs"].items()}
    return Settings(**kept)


def is_on() -> bool:
    """Whether unchanged scripts are compressed: ``GRADWIRE=1``."""
    return _flag("GRADWIRE")


def residual_density() -> float | None:
    """That of unchanged scripts with residual compression: ``GRADWIRE_RESIDUAL=0.001``."""
    density = os.environ.get("GRADWIRE_RESIDUAL")
    if density:
        without_feedback(codec_beside_residuals())
    return _number("GRADWIRE_RESIDUAL", density, float) if density else None


def codec_beside_residuals() -> str:
    """Of small layers in unchanged scripts: ``GRADWIRE_CODEC``, if that is one."""
    given = os.environ.get("GRADWIRE_CODEC", AUTO)
    return DEFAULT_CODEC if given in (AUTO, ADAPT) else given


def warmup() -> int:
    """Steps before it begins: ``GRADWIRE_WARMUP``."""
    steps = _number("GRADWIRE_WARMUP", os.environ.get("GRADWIRE_WARMUP") or "0", int)
    if steps < 0:
        raise ValueError(f"GRADWIRE_WARMUP is {steps}; take 0 or more steps")
    return steps


def clip() -> float:
    """The norm to which it clips all gradients together, 0 for none: ``GRADWIRE_CLIP``."""
    norm = _number("GRADWIRE_CLIP", os.environ.get("GRADWIRE_CLIP") or "0", float)
    if not norm >= 0:
        raise ValueError(f"GRADWIRE_CLIP is {norm:g}; take 0 or more")
    return norm


def wants_summary() -> bool:
    """Whether rank 0 says on stderr what is compressed, and what was sent: ``GRADWIRE_SUMMARY``."""
    return _flag("GRADWIRE_SUMMARY")


def connect_seconds(group_seconds: float) -> float:
    """How long ranks wait for one another at first: ``GRADWIRE_CONNECT_TIMEOUT``, or a minute, if
    the group's own timeout is not shorter."""
    given = os.environ.get("GRADWIRE_CONNECT_TIMEOUT")
    if not given:
        return min(group_seconds, 60.0)
    seconds = _number("GRADWIRE_CONNECT_TIMEOUT", given, float)
    if not 0 < seconds < 1e6:
        raise ValueError(f"GRADWIRE_CONNECT_TIMEOUT is {given}; take a number of seconds above 0")
    return seconds


def from_environment() -> Settings:
    """``GRADWIRE_CODEC`` and ``GRADWIRE_EXACT`` (patterns with commas), or ``GRADWIRE_PLAN``, the
    path of a plan.
    """
    if path := plan_path():
        for flag in ("codec", "exact", "residual"):
            variable = f"GRADWIRE_{flag.upper()}"
            if os.environ.get(variable, "0") not in ("", "0"):
                raise ValueError(
                    f"a plan says how every layer travels: leave out --{flag} ({variable}), or "
                    "--plan (GRADWIRE_PLAN)"
                )
        return Settings(plan=plan_text(path))
    patterns = os.environ.get("GRADWIRE_EXACT", "").split(",")
    return Settings(
        codec=checked_choice(os.environ.get("GRADWIRE_CODEC", AUTO)),
        exact=tuple(sorted(pattern for pattern in patterns if pattern)),
    )


def plan_path() -> str:
    """Of the plan for unchanged scripts, or none: ``GRADWIRE_PLAN``."""
    return os.environ.get("GRADWIRE_PLAN", "")


def plan_text(given: str | os.PathLike | Mapping | Plan) -> str:
    """Of a plan in a file, or as Python has it. Raises for what `compress` cannot do."""
    if isinstance(given, Plan):
        plan = given
    elif isinstance(given, Mapping):
        plan = Plan.parse(json_of(given, "plan"), "plan")
    elif isinstance(given, str) and given.lstrip().startswith("{"):
        plan = Plan.parse(given)
    elif isinstance(given, str | os.PathLike) and os.fspath(given):
        plan = Plan.read(os.fspath(given))
    else:
        raise TypeError(f"plan is {given!r}; give the path of a plan's file, or a dict of the same")
    if plan.has_momentum():
        raise ValueError(f"a way of the plan {_WHY_NO_MOMENTUM}")
    text = plan.json()
    _plans[text] = plan
    return text


def parsed_plan(text: str) -> Plan:
    """What `plan_text` has read, or what an earlier process has. Settings are asked at every step:
    a text is parsed once.
    """
    if text not in _plans:
        _plans[text] = Plan.parse(text)
    return _plans[text]


def without_feedback(text: str) -> str:
    """For residual compression, which has its own. Raises where a way has feedback, too."""
    if Way(text).has_feedback:
        raise ValueError(
            "residual compression keeps what it does not send, in a way of its own: leave out "
            f"+feedback of {text}"
        )
    return text


def checked_choice(text: str) -> str:
    """As `checked_way`, but for `AUTO` and `ADAPT`."""
    return text if text in (AUTO, ADAPT) else checked_way(text)


def checked_way(text: str) -> str:
    """Raises for what is none, or what `compress` cannot do."""
    for word in (AUTO, ADAPT):
        if text.lower().startswith(word):
            raise ValueError(
                f"'{text}': write {word!r} alone, for a whole model: it takes no keys and no "
                "feedback, and is no codec of single layers"
            )
    if Way(text).momentum:
        raise ValueError(f"'{text}' {_WHY_NO_MOMENTUM}")
    return text


def saved_plan_path() -> str:
    """Where the first rank writes how gradients travelled, or nowhere: ``GRADWIRE_SAVE_PLAN``."""
    return os.environ.get("GRADWIRE_SAVE_PLAN", "")


def check_saved_plan() -> None:
    """Raises where no plan can be written."""
    if path := saved_plan_path():
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            raise ValueError(
                f"no plan can be written to {path}: there is no such folder to write to"
            )


def secret() -> str:
    """Of the job, for encryption: ``GRADWIRE_SECRET``."""
    return os.environ.get("GRADWIRE_SECRET", "")


def interface() -> str:
    """For tcp: ``GRADWIRE_INTERFACE``, or the one that gloo was told to use."""
    gloo = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    return os.environ.get("GRADWIRE_INTERFACE", gloo)


def trace() -> str:
    """The folder in which ranks leave traces, or none: ``GRADWIRE_TRACE``."""
    return os.environ.get("GRADWIRE_TRACE", "")


def check_trace() -> None:
    """Makes that folder, and raises when nothing can be written to it."""
    if trace():
        make_trace_folder(trace())


def _number(name: str, text: str, kind: Callable[[str], Number]) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, which is no number") from None


def _flag(name: str) -> bool:
    value = os.environ.get(name, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"{name} is {value!r}; set it to 1 or 0")
    return value == "1"
