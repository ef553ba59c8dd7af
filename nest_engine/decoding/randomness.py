"""Random numbers from a counter, so that chunking, streaming and batching cannot change them."""

from __future__ import annotations

from typing import Literal

import numpy as np

Purpose = Literal["choose", "accept"]
_PURPOSES: dict[Purpose, int] = {"choose": 0, "accept": 1}


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """A number from U[0, 1) that depends on nothing but the arguments.

    Args:
        seed: The seed of the sampling.
        position: Position of the token in the answer, in tokens.
        purpose: `"choose"` to draw a token, `"accept"` to verify one.
    """
    # Philox takes 128 bits of key: a seed of any size is folded into them.
    bits = np.random.Philox(counter=[position, _PURPOSES[purpose], 0, 0], key=seed % (1 << 128))
    return float(np.random.Generator(bits).random())
