"""Lightning, on CPU: the backend is an argument of its strategy.

    torchrun --nproc-per-node 2 09_lightning.py
    python 09_lightning.py                                  # Lightning starts the other rank itself

With strategy="ddp", `gradwire run` or GRADWIRE=1 does the same. Lightning's own `ddp_comm_hook`
does nothing on CPU: it registers hooks on CUDA only.
"""

import gradwire.torch
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from text_model import TextDataset, TextModel, fingerprint
from torch import nn
from torch.utils.data import DataLoader


class Reader(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = TextModel()

    def training_step(self, batch, number):
        text, following = batch
        loss = nn.functional.cross_entropy(self.model(text), following)
        if number == 0 or number % 20 == 19:
            mean = self.all_gather(loss.detach()).mean()
            self.print(f"step {number + 1:3}  loss {mean:.4f}")
        return loss

    def on_train_end(self):
        self.print(gradwire.torch.stats(self.trainer.model))
        print(f"rank {self.global_rank}: weights {fingerprint(self.model)}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


lightning.seed_everything(0, verbose=False)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend="gradwire"),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Reader(), DataLoader(TextDataset(samples=12_800), batch_size=64, shuffle=True))
