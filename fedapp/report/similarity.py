"""How alike the clients are: cosines between their full gradients at one model (FedCOM, equation 7)."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedapp.problems.protocols import FederatedProblem
from fedapp.report.pictures import paper_style, plain, save_picture


def cosine_similarities(problem: FederatedProblem, clients: range) -> NDArray[np.float64]:
    """Return d_ij = g_i'g_j / (|g_i| |g_j|) at the problem's start, for all pairs of some clients."""
    x = torch.tensor(problem.initial()[0], device=problem.objective(0).buffers.device)
    gradients = [problem.objective(client).full_gradient(x).numpy(force=True) for client in clients]
    rows = np.stack([gradient.astype(np.float64) for gradient in gradients])
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(lengths > 0, lengths, 1)
    return np.asarray(rows @ rows.T)


def draw_similarities(
    cosines: NDArray[np.float64], title: str, path: Path, width: float = 0, font_size: float = 0
) -> None:
    """Draw the cosines as a heat map: blue where gradients agree, red where they oppose each other."""
    with paper_style(font_size):
        figure = Figure(figsize=(width or 5.2, 0.85 * (width or 5.2)), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(cosines, cmap="RdBu", vmin=-1, vmax=1)
        axes.set(xlabel="client", ylabel="client", title=plain(title))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        figure.colorbar(image, label="cosine of full gradients")
        save_picture(figure, path)
