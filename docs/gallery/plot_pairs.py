"""
What turns one image into another
=================================

`PairScorer` is a gated auto-encoder: its hidden units see products of x and y, so they encode the relation between the
two and not what is in them. A relation read off one pair can be applied to another image. The model has seen random
images and their shifts only, and no digit.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from energate import PairScorer
from energate.datasets import make_image_pairs, transform_images

X, Y, t = make_image_pairs(5000, "shift", side=8, max_shift=1, seed=0)
model = PairScorer(random_state=0).fit(X, Y)

# %%
# Every line: a pair, a digit, and the digit changed as the pair is.

x, y, shifts = make_image_pairs(200, "shift", side=8, max_shift=1, seed=1)
rows = [int(np.flatnonzero(shifts == number)[0]) for number in (0, 2, 5, 7)]
digits = transform_images(load_digits().data[:4], np.full(4, 4), "shift", max_shift=1)

figure, axes = plt.subplots(4, 5, figsize=(6.6, 5.6))
for line, row, digit in zip(axes, rows, digits, strict=True):
    truth = transform_images(digit[None], shifts[[row]], "shift", max_shift=1)[0]
    images = [x[row], y[row], digit, model.apply(x[[row]], y[[row]], digit[None])[0], truth]
    for ax, image in zip(line, images, strict=True):
        ax.imshow(image.reshape(8, 8), cmap="gray", vmin=-2, vmax=2.5)
        ax.set(xticks=[], yticks=[])
for ax, name in zip(axes[0], ["x", "y", "digit", "applied", "truth"], strict=True):
    ax.set_title(name)
figure.tight_layout()

# %%
# `PairScorer.score_pairs` says how well y goes with x: here for the true y, and for the y of another pair.

right, wrong = model.score_pairs(x, y), model.score_pairs(x, np.roll(y, 1, axis=0))
print(f"the true y is liked more for {100 * (right > wrong).mean():.0f} % of the images")
