"""The bytes of a tensor's values, to be hashed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["tensor_bytes"]


def tensor_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Give the bytes of a tensor's values in order, uint8 of shape (bytes,); not to be changed.

    Raises if it has no such (it is sparse, nested or quantized, say).
    """
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy()
