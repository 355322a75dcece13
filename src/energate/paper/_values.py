"""Values out of JSON: each function gives the value that it names, or says in `UnfitError` why it cannot."""

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_LONGEST_TEXT = 2000
_T = TypeVar("_T")


class UnfitError(ValueError):
    """What is wrong with a file, or a part of one, in a few words."""


def an_object(value: Any, key: str) -> dict[str, Any]:
    """A dictionary."""
    if not isinstance(value, dict):
        raise UnfitError(f"`{key}` must be an object")
    return value


def a_list(value: Any, key: str, read: Callable[[Any, str], _T]) -> list[_T]:
    """A list, each of its items read."""
    if not isinstance(value, list):
        raise UnfitError(f"`{key}` must be a list")
    return [read(item, key) for item in value]


def text(value: Any, key: str) -> str:
    """Text that can be written as UTF-8, not too long."""
    if not isinstance(value, str):
        raise UnfitError(f"`{key}` must be text")
    # Half a surrogate pair is valid in JSON and cannot be written as UTF-8.
    return value[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")


def label(value: Any, key: str) -> str:
    """Text, or anything else as JSON."""
    return text(value if isinstance(value, str) else json.dumps(value, sort_keys=True), key)


def name(value: Any, key: str) -> int | str:
    """A whole number, or anything else as `label` has it."""
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**12 else label(value, key)
    )


def texts(value: Any, key: str) -> dict[str, str]:
    """A dictionary of `label`."""
    return {text(k, key): label(v, key) for k, v in an_object(value, key).items()}


def number(value: Any, key: str) -> float:
    """A number that is not huge, as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise UnfitError(f"`{key}` must be a number")
    return value


def maybe(value: Any, key: str) -> float | None:
    """A number, or None."""
    return None if value is None else number(value, key)


def percent(value: Any, key: str) -> float:
    """A number from 0 to 100."""
    if not 0 <= number(value, key) <= 100:
        raise UnfitError(f"`{key}` must be between 0 and 100")
    return number(value, key)


def numbers(value: Any, key: str) -> dict[str, float]:
    """A dictionary of numbers; what is null is left out."""
    return {text(k, key): number(v, key) for k, v in an_object(value, key).items() if v is not None}


def whole(value: Any, key: str, low: int = 0, high: int = 10**12) -> int:
    """A whole number within limits."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UnfitError(f"`{key}` must be a whole number from {low}")
    return value


def a_shape(value: Any, key: str = "shape") -> tuple[int, int]:
    """Height and width."""
    sides = a_list(value, key, lambda side, key: whole(side, key, 1, 1024))
    if len(sides) != 2:
        raise UnfitError("`shape` must be height and width")
    return sides[0], sides[1]


def packed(value: Any, key: str, size: int) -> NDArray[np.uint8]:
    """So many bytes, from base64."""
    if not isinstance(value, str):
        raise UnfitError(f"`{key}` must be text")
    try:
        found = np.frombuffer(base64.b64decode(value, validate=True), np.uint8)
    except (binascii.Error, ValueError) as error:
        raise UnfitError(f"`{key}` must be base64") from error
    if len(found) != size:
        raise UnfitError(f"`{key}` must have {size} bytes; it has {len(found)}")
    return found
