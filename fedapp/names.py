"""Names: of files, of what is nearly one of several, of algorithms in papers, and as a terminal may show them."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import PureWindowsPath

# What Windows takes for a device in every directory, also with an extension.
DEVICE = re.compile(r"(?i)(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?")
# Words of other programs, and what config keys say instead.
USUAL_WORDS = {"path": "dir", "directory": "dir", "folder": "dir"}


def is_file_name(text: str) -> bool:
    """Tell whether a text names a file or directory within another, on any system."""
    if text in ("", ".", "..") or not text.isprintable() or text[-1] in ". ":
        return False
    return PureWindowsPath(text).name == text and not DEVICE.fullmatch(text)


def one_line(text: str) -> str:
    """Return a text without what a terminal would obey, such as line ends and escape sequences."""
    return "".join(c if c.isprintable() else "?" for c in text)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the choice that is nearest to a mistyped word; "" if none is near.

    A key without its table, such as `mu`, is near to `fedprox.mu`.
    """
    names = list(choices)
    usual = "-".join(USUAL_WORDS.get(part, part) for part in word.lower().split("-"))
    near = [usual] if usual in names else get_close_matches(word.lower(), names, n=1)
    near = near or [name for name in names if name.rpartition(".")[2] == word]
    return f" (did you mean {near[0]!r}?)" if near else ""


# How the papers write the algorithms' names.
DISPLAY_NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedavgm": "FedAvgM",
    "fedproxm": "FedProxM",
    "fedadam": "FedAdam",
    "diana": "DIANA",
    "vrdiana": "VR-DIANA",
    "fedbcgd": "FedBCGD",
    "fedbcgd-plus": "FedBCGD+",
    "fedcet": "FedCET",
    "fedcom": "FedCOM",
    "fedgate": "FedGATE",
    "fedcomgate": "FedCOMGATE",
    "feddc": "FedDC",
    "feddyn": "FedDyn",
    "fedmlb": "FedMLB",
    "fedmlbm": "FedMLBM",
    "fedpaq": "FedPAQ",
    "qsgd": "QSGD",
    "gradma": "GradMA",
    "gradma-w": "GradMA-W",
    "gradma-s": "GradMA-S",
    "mifa": "MIFA",
    "mifam": "MIFAM",
    "mimelite": "MimeLite",
    "moon": "MOON",
    "moonm": "MOONM",
    "scaffold": "SCAFFOLD",
}


def display_name(algorithm: str) -> str:
    """Return an algorithm's name as its paper writes it; of one from elsewhere, the name after the colon."""
    return DISPLAY_NAMES.get(algorithm, algorithm.rpartition(":")[2])
