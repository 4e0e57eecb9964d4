"""LoRA: a frozen network to whose weights small products B A are added, which alone are trained.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022.

A target's weight W becomes W + alpha / rank * B A by a parametrization of torch's, so that modules that read weights
directly, such as nn.MultiheadAttention, are adapted like linear layers. B starts at 0, and the network's outputs with it
are those without. In a state dict, W is `<module>.parametrizations.<weight>.original`, and the factors are
`<module>.parametrizations.<weight>.0.A` and `.0.B`; `merge` puts them together.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedapp.errors import ConfigError
from fedapp.models.keys import LoraKeys

_FACTOR = re.compile(r"(?P<module>.+)\.parametrizations\.(?P<weight>\w+)\.0\.A")


class LowRank(nn.Module):
    """W + scale * B A."""

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.scale = scale
        self.A = nn.Parameter(torch.empty(rank, columns, dtype=weight.dtype, device=weight.device))
        self.B = nn.Parameter(torch.zeros(rows, rank, dtype=weight.dtype, device=weight.device))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the adapted weight."""
        return torch.addmm(weight, self.B, self.A, alpha=self.scale)


def add_lora(network: nn.Module, keys: LoraKeys, head: nn.Module | None) -> None:
    """Add factors to the weights that the keys choose, and freeze those weights."""
    targets = _targets(network, keys, head)
    if not targets:
        known = [name for name, module in network.named_modules() if _weights(module)]
        raise ConfigError(
            f"lora.targets = {keys.targets!r} is not found in the name of any linear layer or attention: "
            f"{_choice(known)}."
        )
    for module, weight in targets:
        base: nn.Parameter = getattr(module, weight)
        base.requires_grad_(False)
        factors = LowRank(base.detach(), keys.rank, keys.alpha / keys.rank)
        parametrize.register_parametrization(module, weight, factors)


def _choice(known: list[str]) -> str:
    if not known:
        return "set lora.rank = 0, because the network has none"
    more = ", ..." if len(known) > 5 else ""
    return f"choose among {', '.join(known[:5])}{more}"


def _weights(module: nn.Module) -> list[str]:
    """Return the names of the weights of a module that LoRA adapts."""
    names = []
    if isinstance(module, nn.Linear):
        names = ["weight"]
    elif isinstance(module, nn.MultiheadAttention):
        names = ["in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"]
    return [
        name
        for name in names
        if getattr(module, name) is not None and not parametrize.is_parametrized(module, name)
    ]


def _targets(
    network: nn.Module, keys: LoraKeys, head: nn.Module | None
) -> list[tuple[nn.Module, str]]:
    """Return the modules to adapt, and the names of their weights."""
    modules = list(network.named_modules())
    if keys.targets:
        chosen = [module for name, module in modules if re.search(keys.targets, name)]
    else:
        attention = [
            m for _, a in modules if isinstance(a, nn.MultiheadAttention) for m in a.modules()
        ]
        chosen = [m for m in (attention or [m for _, m in modules]) if m is not head]
    return [(module, weight) for module in chosen for weight in _weights(module)]


def merge(tensors: Mapping[str, NDArray[Any]], alpha: float) -> dict[str, NDArray[Any]]:
    """Return the state dict of the network without LoRA from one with it: W + alpha / rank * B A in the place of W."""
    merged = dict(tensors)
    for module, weight in list(_adapted(tensors)):
        place = f"{module}.parametrizations.{weight}"
        base, A, B = (merged.pop(f"{place}.{part}") for part in ("original", "0.A", "0.B"))
        merged[f"{module}.{weight}"] = base + alpha / len(A) * (B @ A)
    return merged


def _adapted(tensors: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each adapted weight."""
    for name in tensors:
        if found := _FACTOR.fullmatch(name):
            yield found["module"], found["weight"]


def merged_model(directory: str | Path) -> dict[str, NDArray[Any]]:
    """Return the model of a run's directory with its factors merged, as a state dict of NumPy arrays."""
    from safetensors.numpy import load_file

    path = Path(directory)
    config: dict[str, Any] = json.loads((path / "config.json").read_text())["config"]
    return merge(load_file(path / "model.safetensors"), float(config["lora.alpha"]))
