"""Names of files, and text that a terminal may be shown."""

import re
from pathlib import PureWindowsPath

# What Windows takes for a device in every directory, also with an extension.
DEVICE = re.compile(r"(?i)(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?")


def is_file_name(text: str) -> bool:
    """Tell whether a text names a file or directory within another, on any system."""
    if text in ("", ".", "..") or not text.isprintable() or text[-1] in ". ":
        return False
    return PureWindowsPath(text).name == text and not DEVICE.fullmatch(text)


def one_line(text: str) -> str:
    """Return a text without what a terminal would obey, such as line ends and escape sequences."""
    return "".join(c if c.isprintable() else "?" for c in text)
