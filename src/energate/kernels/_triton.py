"""The kernels themselves, in Triton: a tile of a product in registers, what an activation makes of it, and row sums.

Imported only where Triton is.  A program has one tile, ROWS rows by UNITS units: of the pre-activations (N, M) only
tiles ever exist, and never in memory.  What a tile says of each of its rows goes to memory, and the caller adds it up.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _place(n_rows, n_units, ROWS: tl.constexpr, UNITS: tl.constexpr, TOGETHER: tl.constexpr):
    """The numbers of a program's tile of rows and of units: neighbours share rows and units while these are cached."""
    number = tl.program_id(0)
    n_row_tiles, n_unit_tiles = tl.cdiv(n_rows, ROWS), tl.cdiv(n_units, UNITS)
    per_group = TOGETHER * n_unit_tiles
    first = number // per_group * TOGETHER
    size = tl.minimum(n_row_tiles - first, TOGETHER)
    return first + number % per_group % size, number % per_group // size


@triton.jit
def _preactivation(
    A, B, rows, units, n_rows, n_units, a_row, b_unit,
    N_COLUMNS: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of A @ B^T in float32; past the end rows and units repeat: what comes of them is masked later."""
    columns = tl.arange(0, COLUMNS)
    a = A + (rows % n_rows).to(tl.int64)[:, None] * a_row + columns[None, :]
    b = B + (units % n_units).to(tl.int64)[None, :] * b_unit + columns[:, None]
    total = tl.zeros((ROWS, UNITS), dtype=tl.float32)
    for _ in range(N_COLUMNS // COLUMNS):
        total = tl.dot(tl.load(a), tl.load(b), total, input_precision=PRECISION)
        a += COLUMNS
        b += COLUMNS
    if N_COLUMNS % COLUMNS:
        inside = columns < N_COLUMNS % COLUMNS
        left, right = tl.load(a, mask=inside[None, :], other=0.0), tl.load(b, mask=inside[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    return total


@triton.jit
def sum_of_softplus(
    A, B, bias, out, n_rows, n_units, per_model, a_model, a_row, b_model, b_unit, out_model, out_tile, out_side,
    N_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Sums of softplus(A @ B^T + bias) over the units of a tile: those of its first model, and of the next.

    Models that share rows are one product of all their units, ``per_model`` of each; a tile must not reach a third.
    ``out`` is (models with rows of their own, tiles, 2, N).
    """
    row_tile, unit_tile = _place(n_rows, n_units, ROWS, UNITS, TOGETHER)
    model = tl.program_id(1).to(tl.int64)
    rows, units = row_tile * ROWS + tl.arange(0, ROWS), unit_tile * UNITS + tl.arange(0, UNITS)
    u = _preactivation(
        A + model * a_model, B + model * b_model, rows, units, n_rows, n_units, a_row, b_unit,
        N_COLUMNS, PRECISION, ROWS, UNITS, COLUMNS,
    )  # fmt: skip
    u += tl.load(bias + model * n_units + units, mask=units < n_units, other=-float("inf"))[None, :]
    # exp2 and log2 are what the processor has; units past the end have softplus(-inf) = 0.
    each = tl.maximum(u, 0.0) + LN_2 * tl.log2(1.0 + tl.exp2(-LOG2_E * tl.abs(u)))
    is_first = units // per_model == unit_tile * UNITS // per_model
    where = out + model * out_model + unit_tile.to(tl.int64) * out_tile + rows
    tl.store(where, tl.sum(tl.where(is_first[None, :], each, 0.0), 1), mask=rows < n_rows)
    tl.store(where + out_side, tl.sum(tl.where(is_first[None, :], 0.0, each), 1), mask=rows < n_rows)


@triton.jit
def tops_and_sums(
    A, B, bias, counts, inverse, out, n_rows, n_units, a_model, a_row, b_model, b_unit, out_model, out_tile, out_side,
    N_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
    TEMPERATURES: tl.constexpr,
):  # fmt: skip
    """Of the units of a tile, u = A @ B^T + bias, the largest, and sums of counts * exp((u - largest) inverse 4^j).

    ``out`` is (K, tiles, 1 + J, N); ``inverse`` (K,) is 1 / T of the highest temperature, and j counts down from it.
    """
    row_tile, unit_tile = _place(n_rows, n_units, ROWS, UNITS, TOGETHER)
    model = tl.program_id(1).to(tl.int64)
    rows, units = row_tile * ROWS + tl.arange(0, ROWS), unit_tile * UNITS + tl.arange(0, UNITS)
    u = _preactivation(
        A + model * a_model, B + model * b_model, rows, units, n_rows, n_units, a_row, b_unit,
        N_COLUMNS, PRECISION, ROWS, UNITS, COLUMNS,
    )  # fmt: skip
    there = units < n_units
    u += tl.load(bias + model * n_units + units, mask=there, other=-float("inf"))[None, :]
    n = tl.load(counts + model * n_units + units, mask=there, other=0.0)[None, :]
    largest = tl.max(u, 1)
    term = tl.exp2((u - largest[:, None]) * (LOG2_E * tl.load(inverse + model)))
    where = out + model * out_model + unit_tile.to(tl.int64) * out_tile + rows
    tl.store(where, largest, mask=rows < n_rows)
    tl.store(where + out_side, tl.sum(n * term, 1), mask=rows < n_rows)
    if TEMPERATURES > 1:
        term = term * term
        term = term * term
        tl.store(where + 2 * out_side, tl.sum(n * term, 1), mask=rows < n_rows)
    if TEMPERATURES > 2:
        term = term * term
        term = term * term
        tl.store(where + 3 * out_side, tl.sum(n * term, 1), mask=rows < n_rows)
