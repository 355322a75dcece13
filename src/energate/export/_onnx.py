"""From a traced module to the bytes of an ONNX file."""

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from energate.errors import InputError, require
from energate.views.graphs import Graph

OPSET = 18
ROWS = "rows"  # the name of the axis of any length
LARGEST = 2**31 - 2**20  # bytes that fit into one file


def to_onnx(graph: Graph, about: dict[str, Any], double: bool, columns: Any = None) -> bytes:
    """The file of a graph, in float32 or float64; ``about``, what `describe` says of the model, is in its metadata."""
    onnx = require("onnx", "onnx")
    require("onnxscript", "onnx")
    dtype = torch.float64 if double else torch.float32
    module = graph.module.to("cpu", dtype).eval().requires_grad_(False)
    n_bytes = sum(t.numel() * t.element_size() for t in [*module.parameters(), *module.buffers()])
    if n_bytes > LARGEST:
        raise InputError(f"An ONNX file holds at most 2 GiB; this model has {n_bytes / 2**30:.1f} GiB of numbers.")
    rows, inner = (graph.block, "_block") if graph.block else (3, "")
    examples = tuple(torch.zeros(rows, width, dtype=dtype) for width in graph.inputs.values())
    shapes = None if graph.block else tuple({0: torch.export.Dim.DYNAMIC} for _ in examples)
    try:
        with torch.no_grad(), _quietly():
            program = torch.onnx.export(
                module,
                examples,
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=[f"{name}{inner}" for name in graph.inputs],
                output_names=[f"{name}{inner}" for name in graph.outputs],
                opset_version=OPSET,
                verbose=False,
            )
        assert program is not None
        proto = program.model_proto
    except Exception as error:  # whatever torch cannot trace or translate
        raise InputError(
            f"This {about['estimator']} cannot be exported: {_reason(error)} Nothing was written."
        ) from error
    proto = _named_rows(proto) if graph.block is None else _in_blocks(proto, graph, graph.block)
    _strip(proto.graph)
    known = {
        "energate": about,
        "classes": about["classes"],
        "labels": (columns and columns.labels) or about["labels"],
        "feature_names": about["feature_names"] if columns is None else columns.feature_names,
        "cells": about["cells"],
        "columns": None if columns is None else columns.to_json(),
    }
    texts = {name: json.dumps(value) for name, value in known.items() if value is not None}
    onnx.helper.set_model_props(proto, texts)
    proto.producer_name = "energate"
    proto.producer_version = about["energate"]
    proto.doc_string = f"{about['estimator']}: {', '.join(graph.inputs)} to {', '.join(graph.outputs)}"
    return bytes(proto.SerializeToString())


def open_session(content: bytes) -> Any:
    """An onnxruntime session on the CPU, which refuses graphs that it cannot run."""
    runtime = require("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        raise InputError(
            f"onnxruntime cannot run the exported graph: {_reason(error)} Nothing was written. "
            "If you asked for float64, try float32."
        ) from error


def _reason(error: BaseException) -> str:
    """The last line of the innermost cause, which says most."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}".rstrip(". ") + "."


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the notes that the exporter logs about packages and operators that do not matter here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _strip(graph: Any) -> None:
    """Take out the notes on where in our source, and in which folder, each node comes from: most of a small file."""
    del graph.metadata_props[:]
    for each in [*graph.input, *graph.output, *graph.node]:
        del each.metadata_props[:]
        each.doc_string = ""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                _strip(inner)


def _named_rows(proto: Any) -> Any:
    """Give the axis of any length one name everywhere."""
    for value in [*proto.graph.input, *proto.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_param = ROWS
    del proto.graph.value_info[:]
    return proto


def _in_blocks(proto: Any, graph: Graph, size: int) -> Any:
    """A graph for a fixed number of rows, run block by block over any number of them; the last block is filled up."""
    onnx = require("onnx", "onnx")
    helper = onnx.helper
    constants, inputs, outputs, after = [], [], [], []

    def constant(name: str, *values: int) -> str:  # names inside and outside a block must differ
        constants.append(helper.make_tensor(f"over_{name}", onnx.TensorProto.INT64, [len(values)], list(values)))
        return f"over_{name}"

    def node(kind: str, given: list[str], made: str, **options: Any) -> Any:
        return helper.make_node(kind, given, [made], **options)

    zero, one, block = constant("zero", 0), constant("one", 1), constant("size", size)
    nodes = [
        node("Shape", [next(iter(graph.inputs))], "over_n", start=0, end=1),
        node("Neg", ["over_n"], "over_minus_n"),
        node("Mod", ["over_minus_n", block], "over_lack"),  # the rows that the last block lacks
        node("Concat", [zero, zero, "over_lack", zero], "over_pads", axis=0),
    ]
    for (name, width), value in zip(graph.inputs.items(), proto.graph.input, strict=True):
        inputs.append(helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, [ROWS, width]))
        nodes.append(node("Pad", [name, "over_pads"], f"{name}_filled", mode="constant"))
        shape = constant(f"{name}_shape", -1, size, width)
        nodes.append(node("Reshape", [f"{name}_filled", shape], f"{name}_blocks"))
    for name, value in zip(graph.outputs, proto.graph.output, strict=True):
        rest = [dim.dim_value for dim in value.type.tensor_type.shape.dim][1:]
        outputs.append(helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, [ROWS, *rest]))
        after.append(node("Reshape", [f"{name}_blocks", constant(f"{name}_shape", -1, *rest)], f"{name}_filled"))
        after.append(node("Slice", [f"{name}_filled", zero, "over_n", zero, one], name))
    proto.graph.name = "block"
    del proto.graph.value_info[:]
    given, made = ([f"{name}_blocks" for name in names] for names in (graph.inputs, graph.outputs))
    scan = helper.make_node("Scan", given, made, body=proto.graph, num_scan_inputs=len(given))
    whole = helper.make_graph([*nodes, scan, *after], "energate", inputs, outputs, constants)
    return helper.make_model(
        whole, opset_imports=list(proto.opset_import), functions=list(proto.functions), ir_version=proto.ir_version
    )
