"""Values out of JSON: each function gives the value it names, or says in `UnfitError` why it cannot."""

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
    if not isinstance(value, dict):
        raise UnfitError(f"`{key}` must be an object")
    return value


def a_list(value: Any, key: str, read: Callable[[Any, str], _T]) -> list[_T]:
    if not isinstance(value, list):
        raise UnfitError(f"`{key}` must be a list")
    return [read(item, key) for item in value]


def text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise UnfitError(f"`{key}` must be text")
    # Half a surrogate pair is valid in JSON and cannot be written as UTF-8.
    return value[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")


def label(value: Any, key: str) -> str:
    """Text, or anything else as JSON."""
    return text(value if isinstance(value, str) else json.dumps(value, sort_keys=True), key)


def texts(value: Any, key: str) -> dict[str, str]:
    return {text(k, key): label(v, key) for k, v in sorted(an_object(value, key).items())}


def number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise UnfitError(f"`{key}` must be a number")
    return float(value)


def maybe(value: Any, key: str) -> float | None:
    return None if value is None else number(value, key)


def percent(value: Any, key: str) -> float:
    if not 0 <= number(value, key) <= 100:
        raise UnfitError(f"`{key}` must be between 0 and 100")
    return float(value)


def numbers(value: Any, key: str) -> dict[str, float]:
    return {text(k, key): number(v, key) for k, v in sorted(an_object(value, key).items()) if v is not None}


def whole(value: Any, key: str, low: int = 0, high: int = 10**12) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UnfitError(f"`{key}` must be a whole number from {low}")
    return value


def a_shape(value: Any) -> tuple[int, int]:
    sides = a_list(value, "shape", lambda side, key: whole(side, key, 1, 1024))
    if len(sides) != 2:
        raise UnfitError("`shape` must be height and width")
    return sides[0], sides[1]


def packed(value: Any, key: str, size: int) -> NDArray[np.uint8]:
    try:
        found = np.frombuffer(base64.b64decode(_raw(value, key), validate=True), np.uint8)
    except (binascii.Error, ValueError) as error:
        raise UnfitError(f"`{key}` must be base64") from error
    if len(found) != size:
        raise UnfitError(f"`{key}` must have {size} bytes; it has {len(found)}")
    return found


def _raw(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise UnfitError(f"`{key}` must be text")
    return value
