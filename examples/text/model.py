"""A small transformer that predicts the next byte."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lit_loader import Packed

Batch = dict[str, Tensor] | Packed

NEIGHBOURS = 6  # bytes that are looked at together before attention


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, seen_by: Tensor | None) -> Tensor:
        """``seen_by``: who looks at whom (bytes × bytes, bool); None: each at those before it."""
        parts = self.projections(self.norm_1(x)).chunk(3, dim=-1)
        query, key, value = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        # Padding follows the text, where nothing that counts looks.
        seen = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=seen_by, is_causal=seen_by is None
        )
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norm_2(x))


class ByteModel(LightningModule):
    """Predicts each byte from those before it; logs nats (loss) and bits a byte of each split.

    Args:
        width: Numbers that stand for a byte.
        layers: Attention blocks.
        heads: Attention heads of each.
        context: Most bytes that are looked at.
        lr: Learning rate of AdamW at its peak, after a tenth of the steps.
    """

    def __init__(
        self,
        width: int = 128,
        layers: int = 2,
        heads: int = 4,
        context: int = 512,
        lr: float = 4e-3,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        for embedding in (self.bytes, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.neighbours = nn.Conv1d(width, width, NEIGHBOURS)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, pack: Packed | None = None) -> Tensor:
        """Returns logits (batch × bytes × 256) of the byte that follows each one.

        ``pack``: what the one row of bytes is made of; of its texts none looks at another.
        """
        places, seen_by = torch.arange(tokens.shape[1], device=tokens.device), None
        if pack is not None:
            texts, earlier = pack.sequence_ids, places[:, None] >= places
            places, seen_by = pack.position_ids, (texts[:, None] == texts) & earlier
        x = self.bytes(tokens.long()) + self.places(places)
        # Which letters stand together is learned at once this way, and slowly by attention.
        before = nn.functional.pad(x.transpose(1, 2), (NEIGHBOURS - 1, 0))
        near = before.unfold(2, NEIGHBOURS, 1)  # batch × width × bytes × neighbours
        own = torch.arange(NEIGHBOURS - 1, -1, -1, device=tokens.device) <= places[:, None]
        weight, bias = self.neighbours.weight, self.neighbours.bias
        x = x + torch.einsum("bwtn,own->bto", near * own, weight) + bias
        for block in self.blocks:
            x = block(x, seen_by)
        return nn.functional.linear(self.norm(x), self.bytes.weight)

    def _step(self, batch: Batch, split: str, **options: Any) -> Tensor:
        if isinstance(batch, Packed):
            tokens = batch.values["tokens"][None]
            found = self(tokens, batch)[:, :-1]
            # No text's first byte follows from another text, and padding from nothing.
            others = (batch.position_ids[1:] == 0) | (batch.sequence_ids[1:] < 0)
            targets = tokens[:, 1:].long().masked_fill(others, -100)
        else:
            tokens, lengths = batch["tokens"], batch.get("lengths")
            found, targets = self(tokens[:, :-1]), tokens[:, 1:].long()
            if lengths is not None:
                places = torch.arange(targets.shape[1], device=targets.device)
                targets = targets.masked_fill(places >= lengths[:, None] - 1, -100)
        counted = int((targets != -100).sum())
        loss = nn.functional.cross_entropy(
            found.flatten(0, 1), targets.flatten(), ignore_index=-100
        )
        bits = loss.detach() / math.log(2)
        for name, value, shown in (("loss", loss.detach(), False), ("bits", bits, True)):
            self.log(
                f"{split}/{name}",
                value,
                prog_bar=shown and not split.startswith("test"),
                on_step=False,
                on_epoch=True,
                batch_size=counted,
                sync_dist=True,
                **options,
            )
        return loss

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self._step(batch, "train")

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, "val", self.trainer.val_dataloaders, dataloader_idx)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, "test", self.trainer.test_dataloaders, dataloader_idx)

    def _evaluate(self, batch: Batch, split: str, loaders: Any, number: int) -> None:
        if isinstance(loaders, dict):  # one for each source of a mixture
            self._step(batch, f"{split}/{list(loaders)[number]}", add_dataloader_idx=False)
        else:
            self._step(batch, split)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"], weight_decay=0.01)
        steps = max(10, int(self.trainer.estimated_stepping_batches))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams["lr"], total_steps=steps, pct_start=0.1
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @torch.no_grad()
    def continue_text(self, text: bytes, count: int, temperature: float = 0.8) -> bytes:
        """Writes on: ``count`` bytes more, or less where the document ends."""
        generator = torch.Generator().manual_seed(0)
        written = list(text)
        for _ in range(count):
            tokens = torch.tensor([written[-self.hparams["context"] :]])
            odds = torch.softmax(self(tokens.to(self.device))[0, -1].cpu() / temperature, 0)
            written.append(int(torch.multinomial(odds, 1, generator=generator)))
            if not written[-1]:
                return bytes(written[:-1])
        return bytes(written)
