"""Why a client's update was not used."""

from dataclasses import dataclass
from enum import Enum, auto


class Reason(Enum):
    """What went wrong, for decisions; the sentence for people is the refusal's text."""

    NO_ANSWER = auto()  # its node did not answer in time, or Flower says so
    LACKS_FROZEN = auto()  # its node has not got the parameters that are not trained
    LACKS_MODEL = auto()  # its node has not got the model that a difference is to be added to
    FAILED = auto()  # the client or its node reports an error itself
    MALFORMED = auto()  # the reply is not what was asked for
    NOT_FINITE = auto()  # a number is infinite, not a number, or too large to compute with
    TOO_LONG = auto()  # longer than max-update-norm
    UNUSUALLY_LONG = auto()  # longer than max-update-ratio times the usual length
    NOT_CREDIBLE = auto()  # it claims something that cannot be, or must not be


@dataclass(frozen=True)
class Refusal:
    """A client whose update was not used, and why."""

    client: int
    reason: Reason
    text: str
