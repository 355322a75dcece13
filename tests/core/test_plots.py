import matplotlib as mpl
import numpy as np
import pytest
import torch
from cases import random_model

from energate.errors import InputError
from energate.plots import plot_filters, plot_vector_field
from energate.units import GatedUnits, MeanUnits

mpl.use("Agg")

from matplotlib import pyplot as plt


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_vector_field_draws_arrows_contours_points_and_trajectories() -> None:
    model = random_model([MeanUnits(2, 2, 5)])
    starts = torch.tensor([[1.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)
    _, ax = plt.subplots()
    assert plot_vector_field(model, (-2, 2, -1, 1), k=1, points=starts, starts=starts, ax=ax) is ax
    assert ax.get_xlim() == (-2, 2)
    assert ax.get_ylim() == (-1, 1)
    first, second = (line.get_xydata() for line in ax.get_lines())
    assert tuple(first[0]) == (1.0, 1.0)
    assert tuple(second[0]) == (-1.0, 0.5)
    ends = torch.as_tensor(np.stack([first[-1], second[-1]]))
    assert (model.vector_field(ends)[1].norm(dim=-1) < 1e-3).all()  # a trajectory ends where the field vanishes


def test_vector_field_takes_a_context() -> None:
    model = random_model([GatedUnits(1, 2, 3, 4, 5)])
    context = torch.ones(1, 3, dtype=torch.float64)
    plot_vector_field(model, (-1, 1, -1, 1), c=context, starts=torch.zeros(2, 2, dtype=torch.float64))


def test_vector_field_of_a_flat_energy_has_no_contours() -> None:
    model = random_model([MeanUnits(1, 2, 2, "linear")])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.groups[0].W.copy_(torch.eye(2))  # r(v) = v: the energy is constant
    plot_vector_field(model, (-1, 1, -1, 1))


def test_vector_field_needs_two_columns() -> None:
    with pytest.raises(InputError, match="2 visible columns; this one has 3"):
        plot_vector_field(random_model([MeanUnits(1, 3, 5)]), (-1, 1, -1, 1))


def test_filters_are_laid_out_in_reading_order() -> None:
    weights = torch.zeros(3, 6)
    weights[1, 0] = 2.0  # top left pixel of the second filter
    ax = plot_filters(weights, (2, 3), n_columns=2)
    sheet = ax.get_images()[0].get_array()
    assert sheet.shape == (2 * 3 + 1, 2 * 4 + 1)
    assert sheet[1, 5] == 1.0  # scaled to its own maximum
    assert sheet[1, 1] == 0.0


def test_filters_refuse_a_shape_that_does_not_fit() -> None:
    with pytest.raises(InputError, match=r"\(n, 6\)"):
        plot_filters(torch.zeros(3, 7), (2, 3))
