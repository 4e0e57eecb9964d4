"""How alike the clients are: cosines between their full gradients at one model (FedCOM, equation 7)."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedapp.problems.protocols import FederatedProblem


def cosine_similarities(problem: FederatedProblem, clients: range) -> NDArray[np.float64]:
    """Return d_ij = g_i'g_j / (|g_i| |g_j|) at the problem's start, for all pairs of some clients."""
    x = torch.tensor(problem.initial()[0])
    gradients = [problem.objective(client).full_gradient(x).numpy(force=True) for client in clients]
    rows = np.stack([gradient.astype(np.float64) for gradient in gradients])
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(lengths > 0, lengths, 1)
    return np.asarray(rows @ rows.T)


def draw_similarities(cosines: NDArray[np.float64], title: str, path: Path) -> None:
    """Draw the cosines as a heat map: blue where gradients agree, red where they oppose each other."""
    figure = Figure(figsize=(5.2, 4.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(cosines, cmap="RdBu", vmin=-1, vmax=1)
    axes.set(xlabel="client", ylabel="client", title=title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, label="cosine of full gradients")
    figure.savefig(path, dpi=150)
