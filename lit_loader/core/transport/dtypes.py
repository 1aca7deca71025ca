"""The dtypes that torch and NumPy share, in both directions, and torch's by their names.

For whatever goes through NumPy because that is torch's quickest way to a tensor: collation and the
codec.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

DTYPE_NAMES: Final = {
    dtype: name for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)
}
"""The name of each of torch's dtypes, which is an attribute of ``torch``."""

_SHARED: Final = (
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)

NUMPY_DTYPES: Final[dict[torch.dtype, np.dtype[np.generic]]] = {
    dtype: torch.empty(0, dtype=dtype, device="cpu").numpy().dtype for dtype in _SHARED
}
"""NumPy's dtype for torch's, where there is one."""

TORCH_DTYPES: Final = {numpy_dtype: dtype for dtype, numpy_dtype in NUMPY_DTYPES.items()}
"""The other way round."""
