"""The exactness rule: equal, except where a decision was closer than a stated margin.

In float64 every equality is exact. In float32 and bfloat16 the shape of a batch changes the
last bits, so a decision that was all but a tie may fall the other way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

MARGINS = {torch.float64: 0.0, torch.float32: 2e-3, torch.bfloat16: 5e-2}
"""Relative margin below which a decision counts as a tie, by dtype."""


def first_difference(left: Sequence[object], right: Sequence[object]) -> int | None:
    """Index of the first difference of two sequences, lengths included; None where they are equal."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return None if len(left) == len(right) else min(len(left), len(right))


def assert_same_decisions(
    actual: Sequence[object], expected: Sequence[object], margins: Sequence[float], dtype: torch.dtype
) -> bool:
    """Assert that two runs decided alike up to the first near tie.

    Args:
        actual: What one run emitted.
        expected: What the other did.
        margins: For each expected item, how close the decisions behind it were.
        dtype: Dtype of the model; says what a near tie is.

    Returns:
        Whether they are wholly equal.
    """
    at = first_difference(actual, expected)
    if at is None:
        return True
    margin = min(margins[max(0, at - 1) : at + 1], default=0.0)
    assert margin < MARGINS[dtype], (
        f"different at {at} with a margin of {margin:.2e}:\n{list(actual)[at - 2 : at + 3]}\n"
        f"{list(expected)[at - 2 : at + 3]}"
    )
    return False


@torch.inference_mode()
def assert_same_greedy(model, prompt: Sequence[int], actual: Sequence[int], expected: Sequence[int]) -> bool:
    """Assert that two greedy continuations are equal up to the first near tie of the model's logits.

    Returns:
        Whether they are wholly equal.
    """
    at = first_difference(actual, expected)
    if at is None:
        return True
    logits = model(torch.tensor([[*prompt, *expected[:at]]])).logits[0, -1]
    top = torch.topk(torch.softmax(logits.float() if logits.dtype == torch.bfloat16 else logits, -1), 2)
    margin = float(1 - top.values[1] / top.values[0])
    assert margin < MARGINS[model.dtype], f"different at {at} although the margin is {margin:.2e}"
    return False
