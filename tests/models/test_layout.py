"""How a vector is laid out."""

from torch import nn

from fedapp.models.layout import Layout
from fedapp.models.networks import layout_of


def test_a_layout_tells_how_long_the_rows_of_its_tensors_are() -> None:
    network = nn.Sequential(nn.Conv2d(3, 5, 2), nn.Flatten(), nn.Linear(20, 4))
    layout = layout_of(network)
    assert layout.pieces == ((60, 12), (5, 5), (80, 20), (4, 4))
    assert layout.pieces_within(slice(30, 75)) == ((30, 12), (5, 5), (10, 10))
    assert Layout.single(9).pieces == ((9, 9),)
