"""The kernels themselves, in Triton: a tile of a product in registers, what an activation makes of it, and row sums.

Imported only where Triton is.  A tile is ROWS rows by UNITS units: of the pre-activations (N, M) only tiles ever exist,
and never in memory.  What a tile says of each of its rows goes to memory, and the caller adds it up.  A program takes
one tile after the other; the factors of a product are read through descriptors, which fill up with zeros past the end.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
ROOT_HALF = tl.constexpr(0.7071067811865476)
MOST_FACTORS = tl.constexpr(128)  # between 2^-1/2 and 2^1/2 each, so that no product of them leaves float32


@triton.jit
def _place(number, n_rows, n_units, ROWS: tl.constexpr, UNITS: tl.constexpr, TOGETHER: tl.constexpr):
    """Model, first row and first unit of a tile: neighbours share rows and units while these are cached."""
    n_row_tiles, n_unit_tiles = tl.cdiv(n_rows, ROWS), tl.cdiv(n_units, UNITS)
    per_model, per_group = n_row_tiles * n_unit_tiles, TOGETHER * n_unit_tiles
    inside = number % per_model
    first = inside // per_group * TOGETHER
    size = tl.minimum(n_row_tiles - first, TOGETHER)
    return number // per_model, (first + inside % per_group % size) * ROWS, inside % per_group // size * UNITS


@triton.jit
def _product(
    A, B, row, unit, column,
    N_COLUMNS: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of A @ B^T in float32; A begins at a column."""
    total = tl.zeros((ROWS, UNITS), dtype=tl.float32)
    for start in range(0, N_COLUMNS, COLUMNS):
        total = tl.dot(A.load([row, column + start]), B.load([unit, start]).T, total, input_precision=PRECISION)
    return total


@triton.jit
def _halves(x, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """The first units of a tile, and the others."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, UNITS // 2)), (0, 2, 1)))


@triton.jit
def _times(a, b):
    return a * b


@triton.jit
def _log_of_product(factor, positive, n_units):
    """Sums over units of softplus, from sqrt(1/2) (1 + exp(-|u|)) and max(u, 0) of each."""
    return tl.sum(positive, 1) + (tl.log2(tl.reduce(factor, 1, _times)) + 0.5 * n_units) * LN_2


@triton.jit
def _softplus(u, n_first, UNITS: tl.constexpr):
    """Sums of softplus(u) of each row, over the first units and over the others, of at most `MOST_FACTORS`.

    It is sum max(u, 0) + log prod (1 + exp(-|u|)): one logarithm for all of them, since one for each would take longer
    than their product of matrices.
    """
    factor = tl.exp2(tl.abs(u) * -LOG2_E) * ROOT_HALF + ROOT_HALF
    positive = tl.maximum(u, 0.0)
    if n_first >= UNITS:
        first = _log_of_product(factor, positive, UNITS)
        second = tl.zeros_like(first)
    else:
        is_first = (tl.arange(0, UNITS) < n_first)[None, :]
        first = _log_of_product(tl.where(is_first, factor, 1.0), tl.where(is_first, positive, 0.0), n_first)
        rest = tl.where(is_first, 1.0, factor), tl.where(is_first, 0.0, positive)
        second = _log_of_product(rest[0], rest[1], UNITS - n_first)
    return first, second


@triton.jit
def sum_of_softplus(
    A, B, bias, out, n_rows, n_units, per_model, n_tiles, a_rows, a_columns, out_model, out_part,
    N_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Sums of softplus(A @ B^T + bias) over the units that a tile has of its first model, and of the next.

    Models that share rows are one product of all their units, ``per_model`` of each; a tile must not reach a third.
    Others begin ``a_rows`` and ``a_columns`` further on in A.  ``out`` is (K, parts, N), zeros before: the parts of a
    model are what the tiles say in which it has units.
    """
    for number in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), flatten=True):
        model, row, unit = _place(number, n_rows, n_units, ROWS, UNITS, TOGETHER)
        u = _product(
            A, B, model * a_rows + row, model * n_units + unit, model * a_columns,
            N_COLUMNS, PRECISION, ROWS, UNITS, COLUMNS,
        )  # fmt: skip
        units = tl.arange(0, UNITS)
        there = unit + units < n_units
        # Units past the end have softplus(-inf) = 0.
        u += tl.load(bias + model * n_units + unit + units, mask=there, other=-float("inf"))[None, :]
        owner = unit // per_model  # of the first unit
        n_first = (owner + 1) * per_model - unit
        if UNITS > MOST_FACTORS:
            left, right = _halves(u, ROWS, UNITS)
            first, second = _softplus(left, n_first, UNITS // 2)
            more, rest = _softplus(right, tl.maximum(n_first - UNITS // 2, 0), UNITS // 2)
            first, second = first + more, second + rest
        else:
            first, second = _softplus(u, n_first, UNITS)
        rows = row + tl.arange(0, ROWS)
        part = unit // UNITS - owner * per_model // UNITS
        where = out + (model + owner).to(tl.int64) * out_model + rows
        tl.store(where + part.to(tl.int64) * out_part, first, mask=rows < n_rows)
        has_next = unit + n_first < tl.minimum(unit + UNITS, n_units)
        tl.store(where + out_model, second, mask=rows < tl.where(has_next, n_rows, 0))


@triton.jit
def tops_and_sums(
    A, B, bias, counts, inverse, out, n_rows, n_units, n_tiles, a_rows, out_model, out_part, out_side,
    N_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
    TEMPERATURES: tl.constexpr,
):  # fmt: skip
    """Of the units of a tile, u = A @ B^T + bias, the largest, and sums of counts * exp((u - largest) inverse 4^j).

    ``out`` is (K, tiles, 1 + J, N); ``inverse`` (K,) is 1 / T of the highest temperature, and j counts down from it.
    """
    for number in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), flatten=True):
        model, row, unit = _place(number, n_rows, n_units, ROWS, UNITS, TOGETHER)
        u = _product(A, B, model * a_rows + row, model * n_units + unit, 0, N_COLUMNS, PRECISION, ROWS, UNITS, COLUMNS)
        units = unit + tl.arange(0, UNITS)
        u += tl.load(bias + model * n_units + units, mask=units < n_units, other=-float("inf"))[None, :]
        n = tl.load(counts + model * n_units + units, mask=units < n_units, other=0.0)[None, :]
        largest = tl.max(u, 1)
        term = tl.exp2((u - largest[:, None]) * (tl.load(inverse + model) * LOG2_E))
        rows = row + tl.arange(0, ROWS)
        where = out + model.to(tl.int64) * out_model + (unit // UNITS).to(tl.int64) * out_part + rows
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


@triton.jit
def squares(
    A, B, out, n_rows, n_units, n_tiles, a_rows,  # noqa: ARG001  all kernels of products are told where rows begin
    N_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """(A @ B^T)^2, element by element."""
    for number in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), flatten=True):
        _, row, unit = _place(number, n_rows, n_units, ROWS, UNITS, TOGETHER)
        q = _product(A, B, row, unit, 0, N_COLUMNS, PRECISION, ROWS, UNITS, COLUMNS)
        left, right = _halves(q * q, ROWS, UNITS)  # all of it at once would leave no room for the factors
        out.store([row, unit], left.to(out.dtype))
        out.store([row, unit + UNITS // 2], right.to(out.dtype))


@triton.jit
def through_rows(
    V, a, terms, copy, n_rows, n_models, v_row, copy_row, half,
    N_COLUMNS: tl.constexpr, COPIED: tl.constexpr, PRECISION: tl.constexpr,
    MODELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """a.v - half |v|^2 of rows, for every model, (K, N); and a copy of the rows, perhaps rounded and filled up."""
    rows, models = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, MODELS)
    is_row, is_model = rows < n_rows, models < n_models
    at = rows.to(tl.int64)[:, None]
    linear, others = tl.zeros((ROWS, MODELS), dtype=tl.float32), tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, N_COLUMNS, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        is_column = columns < N_COLUMNS
        v = tl.load(V + at * v_row + columns[None, :], mask=is_row[:, None] & is_column[None, :], other=0.0)
        if COPIED:
            fits = is_row[:, None] & (columns < copy_row)[None, :]
            tl.store(copy + at * copy_row + columns[None, :], v.to(copy.dtype.element_ty), mask=fits)
        others -= half * v * v
        if MODELS == 1:  # a product of matrices would be one with a single column
            others += v * tl.load(a + columns, mask=is_column, other=0.0)[None, :]
        else:
            there = is_model[None, :] & is_column[:, None]
            weights = tl.load(a + models[None, :] * N_COLUMNS + columns[:, None], mask=there, other=0.0)
            linear = tl.dot(v, weights, linear, input_precision=PRECISION)
    found = linear + tl.sum(others, 1)[:, None]
    tl.store(terms + models[None, :] * n_rows + rows[:, None], found, mask=is_row[:, None] & is_model[None, :])
