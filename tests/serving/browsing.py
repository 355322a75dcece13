"""What tests of the page share: drawing in a browser, and reading what it shows."""

import shutil
from typing import Any

import numpy as np

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

#: ways that a hand might take, in shares of the pad
STROKES = {
    0: ["50,15 32,30 30,55 40,80 55,85 70,70 72,40 62,20 50,15"],
    1: ["42,30 55,15 55,85"],
    2: ["30,30 40,17 58,15 68,28 62,45 45,65 30,83 50,83 72,83"],
    3: ["32,20 50,14 66,25 60,42 45,48 63,55 70,70 55,85 32,80"],
    4: ["45,15 30,55 72,55", "60,35 58,88"],
    5: ["68,15 36,16 34,45 55,42 70,58 62,80 45,86 30,80"],
    6: ["60,13 42,30 32,60 40,82 58,85 68,70 58,56 40,60 34,70"],
    7: ["30,16 70,16 55,50 45,88", "38,50 66,50"],
    8: ["50,48 35,35 40,18 58,16 65,32 50,48 34,65 40,84 60,84 67,66 50,48"],
    9: ["66,30 55,15 38,20 35,38 48,48 64,38 66,30 66,60 60,87"],
}


def settle(page: Any, part: str = "") -> None:
    """Wait until no answer is on its way, to the page or to a part of it."""
    page.wait_for_timeout(50)  # the page says at once that it is busy, but after the events that are still on their way
    page.wait_for_selector("#verdict:not(:empty)")
    page.wait_for_selector(f"{part}[aria-busy=true]", state="detached")


def draw(page: Any, digit: int, size: float = 1.0, shift: float = 0.0, wait_for: str = "") -> list[float]:
    """Draw with the mouse; the row that the page asks the server about."""
    page.get_by_role("button", name="Clear").click()
    pad = page.locator("canvas.pad").bounding_box()
    asked: list[Any] = []

    def note(request: Any) -> None:
        if request.url.endswith("/explain"):
            asked.append(request.post_data_json["rows"][0])

    page.on("request", note)
    for stroke in STROKES[digit]:
        shares = [[float(x) / 100 for x in point.split(",")] for point in stroke.split()]
        points = [
            (
                pad["x"] + pad["width"] * (0.5 + shift + size * (x - 0.5)),
                pad["y"] + pad["height"] * (0.5 + size * (y - 0.5)),
            )
            for x, y in shares
        ]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point, steps=4)
        page.mouse.up()
    settle(page, wait_for)
    page.remove_listener("request", note)
    row: list[float] = asked[-1]  # on a slow machine there may be others before the drawing is complete
    return row


def numbers(page: Any, selector: str) -> list[float]:
    """The numbers in cells, as a reader sees them."""
    texts = page.locator(selector).all_inner_texts()
    return [as_number(text) for text in texts]


def as_number(text: str) -> float:
    """A number as the page writes it: with a real minus sign, perhaps in percent, perhaps only a bound."""
    return float(text.strip("<> %").replace("\N{MINUS SIGN}", "-"))


def ink(page: Any, selector: str) -> np.ndarray:
    """How dark the pixels of a picture are, from 0 to 1, in light colours."""
    code = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    red = np.array(page.locator(selector).evaluate(code)).reshape(-1, 4)[:, 0]
    return (255 - red) / (255 - 22)


def luminance(colour: str) -> float:
    shares = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
