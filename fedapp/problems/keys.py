"""The config keys of the problems."""

from typing import Literal

from pydantic import Field

from fedapp.tables import Table


class QuadraticKeys(Table):
    """The quadratic problem, `dataset = "quadratic"`."""

    dim: int = Field(30, ge=1, description="number of coordinates")
    condition: float = Field(10.0, ge=1, description="condition number of every client's Hessian")
    heterogeneity: float = Field(1.0, ge=0, description="spread of the clients' own optima")
    noise: float = Field(0.0, ge=0, description="standard deviation of the gradient noise")
    hessians: Literal["own", "shared"] = Field(
        "own", description='"own": every client\'s differs; "shared": all have the same'
    )
    flat: int = Field(
        0,
        ge=0,
        description="directions in which no client's quadratic changes: still PL, no longer strongly convex",
    )


class ErmKeys(Table):
    """The binary problems, `model = "logistic"` and `"sigmoid-erm"`."""

    positive: int = Field(
        0,
        ge=0,
        description='of model = "logistic" and "sigmoid-erm": the class that is separated from others',
    )
    negative: int = Field(-1, ge=-1, description="the other class; -1: all the rest")
    regularization: float = Field(1e-4, gt=0, description="lambda over the smoothness constant L")
