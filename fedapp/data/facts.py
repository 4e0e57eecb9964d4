"""What all who train one model must agree on about its inputs and targets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """The size and scale of inputs and targets; a user's function that makes a model receives them."""

    shape: tuple[int, ...]  # one input: channels, height and width; or features; or tokens
    num_classes: int  # 0: the target is a number
    mean: tuple[float, ...] = ()  # the inputs' mean, per channel or feature; empty: they are tokens
    std: tuple[float, ...] = ()
    vocabulary: int = 0  # how many tokens there are; 0: inputs are numbers
    target_mean: float = 0.0  # for targets that are numbers
    target_std: float = 1.0
