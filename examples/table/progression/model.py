"""The network: one hidden layer beside a linear model."""

from torch import Tensor, nn

from fedapp import Facts


class WideAndDeep(nn.Module):
    """The sum of a linear map and of a small network."""

    def __init__(self, features: int, width: int = 16) -> None:
        super().__init__()
        self.wide = nn.Linear(features, 1)
        self.deep = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, rows: Tensor) -> Tensor:
        """Return a prediction for every row."""
        prediction: Tensor = self.wide(rows) + self.deep(rows)
        return prediction


def network(facts: Facts) -> nn.Module:
    """Return a network for as many columns as the table has."""
    return WideAndDeep(*facts.shape)
