"""The network of `ImageEnergyClassifier`: energies of the classes, of all of them together, and what trains them.

Class k is an auto-encoder with the energy e_k(v) = sum softplus(u_k(v)) + a_k.v of its own, and with the scale b and
biases B_k of the cross-entropy its logits are b e_k + B_k.  What is the same for all classes changes no probability,
and here it is an energy E_0 of its own (`energate.estimators.restoring`), which knows what images look like:

    E_k(v) = E_0(v) + t e_k(v)        F(v) = (1/s) log sum_k exp(s E_k(v) + B_k),    s = b / t

s is 1 / l^2 with the least noise level l: then F is l^2 times a log-density.  v + grad F(v) is the image without its
noise; t is so small that nothing of that is lost.  So cross-entropy trains e_k, the denoising loss trains E_0, and
neither disturbs the other.  How much an image is liked, s F(v) + w M(v), adds how familiar its features are
(`energate.estimators.familiar`).
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energate.activations import SIGMOID, Activation, softmax, weighted
from energate.autoencoder import Autoencoder
from energate.estimators.convolution import (
    ImageHeads,
    Moves,
    bend_images,
    shift_images,
    turn_images,
    turns_by,
)
from energate.estimators.familiar import Familiarity
from energate.estimators.network import Network
from energate.estimators.restoring import NEGATIVE, Denoising, NoiseFinder, denoising_loss
from energate.training import corrupt
from energate.training.processor import multiplies_bfloat16
from energate.training.ranks import Share, drawn, share_of, sharing
from energate.units import NetworkUnits

#: by ``augment``, the standard deviation of what linear maps add to 1: digits that are turned are all the more few
BENT = {"affine": 0.1, "turns": 0.2}


class ImageNetwork(Network):
    """Logits b e_k(v) + B_k, and with a ``finder`` the energy that all classes share.

    In training rows are moved by up to ``shift`` pixels, perhaps turned and mirrored, and lose a share of their pixels;
    with a finder some of each batch are also denoised.  ``skip`` is for models of older versions, which have none:
    their E_k is e_k - (1 - skip) |v|^2 / 2.
    """

    #: let the cross-entropy take convolutions in bfloat16 where they are quicker; scores are never computed like that
    low_precision = True
    n_noises = 2
    #: one row in so many of a batch is also denoised
    denoised = 3
    #: the largest learning rate of the finder, which has no normalisation to keep larger steps from running off
    finder_rate = 2e-3

    def __init__(
        self,
        heads: ImageHeads,
        shift: Moves,
        augment: str,
        dropout: float,
        skip: float = 0.0,
        finder: NoiseFinder | None = None,
        denoising: Denoising | None = None,
    ) -> None:
        super().__init__()
        n_classes, n_hidden = heads.sizes
        width = math.prod(heads.shape)
        self.autoencoder = Autoencoder(
            [NetworkUnits(heads, width, activation=_mean_over(heads.n_elements, SIGMOID))],
            skip=torch.full((width,), skip) if skip else None,
        )
        # a.v would change with the image, and no element of a group may change an energy
        self.autoencoder.a.requires_grad_(heads.n_elements == 1)
        self.B = nn.Parameter(torch.zeros(n_classes))
        self.log_beta = nn.Parameter(torch.tensor(-math.log(n_hidden) / 2))  # energies are sums over the units
        self.shape, self.shift, self.way, self.dropout = heads.shape, shift, augment, dropout
        self.finder, self.denoising = finder, denoising
        self.familiarity = None if finder is None else Familiarity(heads)
        #: what missing pixels are taken to hold
        self.register_buffer("middle", torch.zeros(width), persistent=False)
        self.middle: Tensor

    @property
    def heads(self) -> ImageHeads:
        """The trunk and the heads."""
        found = self.autoencoder.groups[0].network
        assert isinstance(found, ImageHeads)
        return found

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        own = [] if self.finder is None else list(self.finder.parameters())
        theirs = {id(parameter) for parameter in own}
        trained = [each for each in self.parameters() if each.requires_grad and id(each) not in theirs]
        groups: list[dict[str, Any]] = [{"params": trained, "learning_rate": learning_rate}]
        if own:
            groups.append({"params": own, "learning_rate": min(learning_rate, self.finder_rate)})
        return groups

    # --- logits and energies ----------------------------------------------------------------------

    def forward(self, v: Tensor, noise: torch.Generator | None = None) -> Tensor:
        return self.logits(v) if noise is None else self._quick_logits(self.augment(v, noise))

    def logits(self, v: Tensor) -> Tensor:
        """Calibrated energies, less the term that all classes share: (N, K)."""
        return self._calibrated(self.autoencoder.relative_energy(v))

    def energies(self, v: Tensor) -> Tensor:
        """How much each class likes each row, s E_k + B_k + w M, with no term left out: (N, K), higher is better."""
        return self.scores(v)[0]

    def scores(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The energies, and the logits, which lack what all classes share: (N, K) each, in one pass."""
        logits = self.logits(v)
        if self.finder is None:
            shared = -self.log_beta.exp() * self.autoencoder.shared_term(v)
        else:
            shared = self.scale() * self._finder_activation().potential(self.finder(v)) + self.familiar(v)
        return logits + shared.unsqueeze(1), logits

    def familiar(self, v: Tensor) -> Tensor:
        """How familiar the features of rows are, w M(v): (N,)."""
        if self.familiarity is None:
            return torch.zeros_like(v[:, 0])
        return self.familiarity.weight * NEGATIVE.potential(self.familiarity(v))

    def scale(self) -> Tensor:
        """The scale s of the energies: ()."""
        if self.denoising is None or self.finder is None:
            return self.log_beta.exp()
        return self.log_beta.new_tensor(self.denoising.levels[0] ** -2)

    def classes(self) -> Autoencoder:
        """The auto-encoders of the classes, E_k; they share the weights of this network."""
        if self.finder is None:
            return self.autoencoder
        share, n_classes, width = float(self._share().detach()), len(self.B), math.prod(self.shape)
        own = weighted(self.autoencoder.groups[0].activation, share)
        groups = [
            NetworkUnits(self.heads, width, activation=own),
            NetworkUnits(_Spread(self.finder, n_classes), width, activation=self._finder_activation()),
        ]
        return self._whole(groups, share * self.autoencoder.a)

    def alone(self, k: int) -> Autoencoder:
        """The auto-encoder of class k, as `classes` has it: without passes for the others."""
        if self.finder is None:
            share, finders = 1.0, []
        else:
            share = float(self._share().detach())
            finders = [NetworkUnits(self.finder, math.prod(self.shape), activation=self._finder_activation())]
        own = weighted(self.autoencoder.groups[0].activation, share)
        groups = [NetworkUnits(_One(self.heads, k), math.prod(self.shape), activation=own), *finders]
        return self._whole(groups, share * self.autoencoder.a[k : k + 1])

    def together(self, familiar: bool = True) -> Autoencoder:
        """All classes as one auto-encoder: its energy is F + (w / s) M, times s the liking of rows; or F alone."""
        groups = [self._any_class()]
        if self.finder is not None and self.familiarity is not None:
            width, weight = math.prod(self.shape), float(self.familiarity.weight.detach() / self.scale().detach())
            groups.append(NetworkUnits(self.finder, width, activation=self._finder_activation()))
            if familiar:
                groups.append(NetworkUnits(self.familiarity, width, activation=weighted(NEGATIVE, weight)))
        return self._whole(groups)

    def restoring(self) -> Autoencoder:
        """F as one auto-encoder; with a finder its context (N, D) is what is said of the pixels."""
        groups = [self._any_class()]
        if self.finder is not None:
            width = math.prod(self.shape)
            groups.append(NetworkUnits(self.finder, width, n_context=width, activation=self._finder_activation()))
        return self._whole(groups)

    def reconstruct(self, v: Tensor) -> Tensor:
        """What each class makes of rows, v + grad E_k(v): (K, N, D)."""
        own = self.autoencoder.preoutput(v)
        if self.finder is None:
            return own
        shared = NetworkUnits(self.finder, math.prod(self.shape), activation=self._finder_activation())
        return self._share() * own + self._whole([shared]).preoutput(v)

    def _any_class(self) -> NetworkUnits:
        activation = softmax(temperature=1 / float(self.scale().detach()))
        return NetworkUnits(_Classes(self), math.prod(self.shape), activation=activation)

    def _whole(self, groups: list[NetworkUnits], a: Tensor | None = None) -> Autoencoder:
        """Groups with E_0 among them have no term in |v|^2: it has its own."""
        skip = self.autoencoder.skip if self.finder is None else torch.ones_like(self.middle)
        made = Autoencoder(groups, skip=skip).to(self.B)
        if a is not None:
            made.a.data = a.detach()
        return made

    def _share(self) -> Tensor:
        """How much of the classes' own energies is in E_k, t."""
        return self.log_beta.exp() / self.scale()

    def _finder_activation(self) -> Activation:
        assert self.finder is not None
        return _mean_over(self.finder.n_elements, NEGATIVE)

    def _calibrated(self, energies: Tensor) -> Tensor:
        return self.log_beta.exp() * energies.T + self.B  # (N, K)

    # --- training ---------------------------------------------------------------------------------

    def loss(self, v: Tensor, labels: Tensor, *noises: torch.Generator) -> Tensor:
        """The cross-entropy, and the denoising loss of the first rows, which draws for itself."""
        noise, own = noises
        moved = self.move(v, noise)
        total = F.cross_entropy(self._quick_logits(self.drop(moved, noise)), labels)
        if self.denoising is None or self.finder is None:
            return total
        share = share_of(len(v))
        first = Share(share.rank, share.size, math.ceil(share.n_rows / self.denoised))
        with sharing(first if share.size > 1 else None):
            missed = denoising_loss(self.finder, moved[: first.n_own], self.middle, self.denoising.levels, own)
        return total + self.denoising.weight * first.part / share.part * missed

    def augment(self, v: Tensor, noise: torch.Generator) -> Tensor:
        """Rows (N, D) as training sees them."""
        return self.drop(self.move(v, noise), noise)

    def move(self, v: Tensor, noise: torch.Generator) -> Tensor:
        """Rows moved, turned and mirrored."""
        images, n_rows = v.unflatten(1, self.shape), len(v)
        if self.way in BENT:
            drawing: dict[str, Any] = {"generator": noise, "device": v.device, "dtype": v.dtype}
            maps = torch.eye(2, device=v.device, dtype=v.dtype)
            maps = maps + BENT[self.way] * drawn(torch.randn, (n_rows, 2, 2), 0, **drawing)
            if self.way == "turns":
                maps = turns_by(2 * math.pi * drawn(torch.rand, (n_rows,), 0, **drawing)) @ maps
            images = bend_images(images, maps)  # at once, since pixels that are read twice are blurred twice
        if self.way == "symmetries":
            which = drawn(partial(torch.randint, 8), (n_rows,), 0, generator=noise, device=v.device)
            images = turn_images(images, which)
        if any(self.shift):
            ways = [partial(torch.randint, -n, n + 1) for n in self.shift]
            steps = [drawn(way, (n_rows,), 0, generator=noise, device=noise.device) for way in ways]
            images = shift_images(images, *steps)
        return images.flatten(1)

    def drop(self, v: Tensor, noise: torch.Generator) -> Tensor:
        """Rows without a share of their pixels."""
        return corrupt(v, "masking", self.dropout, noise) / (1 - self.dropout) if self.dropout else v

    def _quick_logits(self, v: Tensor) -> Tensor:
        quicker = self.low_precision and (v.is_cuda or multiplies_bfloat16())
        with torch.autocast(v.device.type, torch.bfloat16, enabled=quicker):
            energies = self.autoencoder.relative_energy(v)
        return self._calibrated(energies.to(v.dtype))


def _mean_over(n_elements: int, activation: Activation) -> Activation:
    """The activation of units of each element of a group: energies are the mean."""
    return activation if n_elements == 1 else weighted(activation, 1 / n_elements)


class _Classes(nn.Module):
    """Rows (N, D) to the logits of the classes divided by s: (N, K), units of F."""

    def __init__(self, network: ImageNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, v: Tensor, c: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return self.network.logits(v) / self.network.scale()


class _One(nn.Module):
    """The units of class k alone: rows (N, D) to (N, M)."""

    def __init__(self, heads: ImageHeads, k: int) -> None:
        super().__init__()
        self.heads, self.k = heads, k

    def forward(self, v: Tensor) -> Tensor:
        u: Tensor = self.heads(v)
        return u[self.k]


class _Spread(nn.Module):
    """The units of one model for K of them: rows (N, D) to (K, N, M)."""

    def __init__(self, network: nn.Module, n_models: int) -> None:
        super().__init__()
        self.network, self.n_models = network, n_models

    def forward(self, v: Tensor) -> Tensor:
        u: Tensor = self.network(v)
        return u.expand(self.n_models, *u.shape)
