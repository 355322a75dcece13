"""The steps of Adam, AdamW and SGD: torch's own, as functions of tensors.

An optimiser object of torch imports `torch._dynamo` when it is made, which takes longer than many a fit.  The functions
that it calls do not, and step alike.  Counts and means are tensors where the parameters are, and the learning rate may
be one, too: nothing is read back to the CPU, so that a step can be captured in a CUDA graph.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from energate.tables.room import check_room

#: what torch's optimiser objects take where nothing else is asked for
ADAM: dict[str, Any] = {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "maximize": False}
_SMALLER = "Fewer hidden units, factors, members or columns take less; so do units='trunk' and units='memory'."
SGD: dict[str, Any] = {"dampening": 0.0, "nesterov": False, "maximize": False}


@dataclass(frozen=True)
class Trace:
    """A tensor that is trained, and what its steps so far have left: means of gradients, and how many there were."""

    tensor: Tensor
    means: tuple[Tensor, ...]
    count: Tensor


Step = Callable[[list[Trace], float | Tensor, float, float, bool], None]


def _adam(traces: list[Trace], rate: float | Tensor, decay: float, _: float, fused: bool) -> None:
    adam(**_memories(traces), foreach=False, fused=fused, lr=rate, weight_decay=decay, **ADAM)


def _adamw(traces: list[Trace], rate: float | Tensor, decay: float, _: float, fused: bool) -> None:
    adamw(**_memories(traces), foreach=False, fused=fused, lr=rate, weight_decay=decay, **ADAM)


def _sgd(traces: list[Trace], rate: float | Tensor, decay: float, momentum: float, fused: bool) -> None:
    memory: dict[str, Any] = {"momentum_buffer_list": [trace.means[0] for trace in traces], "momentum": momentum}
    tensors, gradients = _pairs(traces)
    sgd(tensors, gradients, **memory, foreach=False, fused=fused, lr=rate, weight_decay=decay, **SGD)  # type: ignore[arg-type]


def _pairs(traces: list[Trace]) -> tuple[list[Tensor], list[Tensor]]:
    tensors = [trace.tensor for trace in traces]
    return tensors, [tensor.grad for tensor in tensors if tensor.grad is not None]


def _memories(traces: list[Trace]) -> dict[str, Any]:
    tensors, gradients = _pairs(traces)
    first, second = ([trace.means[i] for trace in traces] for i in (0, 1))
    counts = [trace.count for trace in traces]
    averages = {"exp_avgs": first, "exp_avg_sqs": second, "max_exp_avg_sqs": [], "state_steps": counts}
    return {"params": tensors, "grads": gradients, **averages}


#: by name, the step and how many means it keeps of every tensor
OPTIMIZERS: dict[str, tuple[Step, int]] = {"adam": (_adam, 2), "adamw": (_adamw, 2), "sgd": (_sgd, 1)}


class Optimiser:
    """Steps some tensors that share a learning rate."""

    def __init__(self, tensors: Iterable[Tensor], name: str, weight_decay: float, momentum: float) -> None:
        self._step, n_means = OPTIMIZERS[name]
        self._decay, self._momentum = weight_decay, momentum
        tensors = list(tensors)
        n_bytes = sum(tensor.nbytes for tensor in tensors if tensor.device.type == "cpu")
        # Gradients, their means, the best so far, and about three times as much in passing: told before it begins.
        check_room((n_means + 5) * n_bytes, f"Steps of {n_bytes:,} bytes of weights", _SMALLER)
        self._fused = all(tensor.device.type in ("cpu", "cuda") for tensor in tensors)
        self.traces = [self._trace(tensor, n_means) for tensor in tensors]

    def _trace(self, tensor: Tensor, n_means: int) -> Trace:
        means = tuple(torch.zeros_like(tensor, requires_grad=False) for _ in range(n_means))
        # One kernel for all tensors reads the counts where it runs; steps tensor by tensor read them on the CPU.
        return Trace(tensor, means, torch.zeros((), device=tensor.device if self._fused else "cpu"))

    @torch.no_grad()
    def step(self, rate: float | Tensor) -> None:
        """One step of all tensors that have a gradient."""
        if traces := [trace for trace in self.traces if trace.tensor.grad is not None]:
            self._step(traces, rate, self._decay, self._momentum, self._fused)
