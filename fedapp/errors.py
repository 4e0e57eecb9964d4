"""The ways a run ends early for a reason that its user can act on."""

import logging
import traceback


class ConfigError(ValueError):
    """An error that the user can fix; the message says, in one sentence, how.

    `told` is what a node says of it to the server if it is about the node's data: `tell` in place of the message, or
    the message itself (True) if that quotes nothing of the data. None: the message stays on the node.
    """

    def __init__(self, message: str, tell: str | bool = False) -> None:
        super().__init__(message)
        self.told: str | None = (message if tell else None) if isinstance(tell, bool) else tell


class UserCodeError(ConfigError):
    """An error in code that the user brought; its cause is shown with its traceback after the sentence."""


class MissingWeightsError(ConfigError):
    """The file with a network's weights is not there; a node may have them from the server instead."""


class ClientError(RuntimeError):
    """A client cannot train; the message quotes none of its data, so the server is told it."""

    told = property(str)


class RunError(RuntimeError):
    """The run cannot go on (too few clients answer); what it has so far is saved."""


class DivergedError(RunError):
    """The model is no longer finite; the same config would end so again.

    `since` is the round that accepted the update that stands out most from the usual length: checkpoints of that round
    and later ones are suspect. 0: no update stands out.
    """

    def __init__(self, message: str, since: int = 0) -> None:
        super().__init__(message)
        self.since = since


def unexpected(error: Exception) -> RunError:
    """Return the failure of one run among several, for an error that nobody foresaw."""
    return RunError(f"{type(error).__name__}: {error}")


def traceback_of(error: BaseException | None) -> str:
    """Return what is shown after an error's sentence: the traceback of the user's own code, or nothing."""
    if not isinstance(error, UserCodeError) or not error.__cause__:
        return ""
    return "\n" + "".join(traceback.format_exception(error.__cause__)).rstrip()


def _drop_traceback(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ConfigError | RunError):
        record.msg, record.args, record.exc_info = "%s%s", (error, traceback_of(error)), None
    return True


def log_as_one_sentence() -> None:
    """Make Flower log these two errors as their sentence, without a traceback.

    A ServerApp can end its run as failed only by raising, and Flower logs whatever is
    raised with its traceback.
    """
    logger = logging.getLogger("flwr")
    if _drop_traceback not in logger.filters:
        logger.addFilter(_drop_traceback)
