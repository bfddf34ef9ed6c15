"""For the Trainer of Transformers: gradwire's state in its checkpoints."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from . import load_state_dict, state_dict

_log = logging.getLogger("gradwire")


class GradwireCallback(TrainerCallback):
    """Saves gradwire's state with every checkpoint, each rank its own, and loads it with it::

        trainer = Trainer(model, arguments, callbacks=[GradwireCallback()], ...)
        trainer.train(resume_from_checkpoint=True)

    `resume_from` is for a checkpoint outside of the trainer's ``output_dir``, which a callback is
    not told of.
    """

    def __init__(self, resume_from: str | Path | None = None) -> None:
        self.resume_from = resume_from

    def on_save(self, args, state, control, **kwargs: Any) -> None:
        if args.save_only_model or not distributed.is_initialized():
            return
        folder = _folder(args, state)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(state_dict(), folder / _file(args))

    def on_train_begin(self, args, state, control, **kwargs: Any) -> None:
        if state.global_step == 0 or not distributed.is_initialized():
            return
        places = (self.resume_from, args.resume_from_checkpoint, _folder(args, state))
        for place in places:
            if place and (saved := Path(place) / _file(args)).is_file():
                load_state_dict(torch.load(saved))
                return
        _log.warning(
            "gradwire: %s is not there: training goes on without the state of gradwire; if the "
            "checkpoint is elsewhere, name it with GradwireCallback(resume_from=…)",
            _folder(args, state) / _file(args),
        )


def _folder(args, state) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _file(args) -> str:
    return f"gradwire-rank{args.process_index}.pt"
