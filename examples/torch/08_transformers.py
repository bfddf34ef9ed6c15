"""The Trainer of Transformers, on CPU: a small GPT-2 that reads Python, and goes on if it stopped.

    gradwire run --nproc-per-node 2 08_transformers.py checkpoints
    GRADWIRE=1 torchrun --nproc-per-node 2 08_transformers.py checkpoints      # the same

The Trainer wraps the model itself, by Accelerate, which on CPU refuses a `ddp_backend` other than
gloo; so it is the launcher that has its gradients compressed. One line is new: the callback, which
saves gradwire's state in the Trainer's checkpoints and loads it from there.
"""

import os
import sys

from gradwire.torch.transformers import GradwireCallback
from text_model import fingerprint, read_text
from torch import distributed
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

CONTEXT, SAMPLES = 32, 2048

set_seed(0)
tokens = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}  # bytes
config = GPT2Config(n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, **tokens)
lines = read_text()[: CONTEXT * SAMPLES].view(SAMPLES, CONTEXT)
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    use_cpu=True,
    ddp_find_unused_parameters=False,
    max_steps=60,
    per_device_train_batch_size=16,
    learning_rate=3e-3,
    logging_steps=20,
    save_steps=20,
    report_to="none",
    disable_tqdm=True,
)
os.makedirs(arguments.output_dir, exist_ok=True)
last = get_last_checkpoint(arguments.output_dir)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=arguments,
    train_dataset=[{"input_ids": line, "labels": line} for line in lines],
    callbacks=[GradwireCallback()],
)
trainer.train(resume_from_checkpoint=last)
print(f"rank {arguments.process_index}: weights {fingerprint(trainer.model)}")
distributed.destroy_process_group()  # or gloo's threads may outlive Python, and abort at its end
