"""How curves are told apart, in pictures and on the page: the same colours and dashes, in the same order."""

# Okabe and Ito's colours, which all readers can tell apart. Dashes and markers show curves that coincide.
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000"]
# Lengths of line and gap, in widths of the line; the first is solid. As many as have no factor in common with the
# colours, so that a look comes back only after all pairs.
DASHES: list[tuple[float, ...]] = [(), (5, 2), (1.2, 1.8), (6, 2, 1.2, 2), (11, 3)]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]


def share_drawn(dashes: tuple[float, ...]) -> float:
    """Return how much of a line is drawn: 1 if it is solid."""
    return sum(dashes[::2]) / sum(dashes) if dashes else 1.0
