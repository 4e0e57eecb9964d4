"""The page's script: the modules in `web/`, put together, because a page that is opened from disk cannot import any."""

import re
from pathlib import Path

WEB = Path(__file__).parent / "web"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)


def bundle(main: str = "page.js") -> str:
    """Return a module and all that it imports as one module, each after those that it needs itself."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        text = (WEB / name).read_text(encoding="utf-8")
        for needed in IMPORT.findall(text):
            if needed not in parts:
                add(needed)
        parts[name] = re.sub(r"^export ", "", IMPORT.sub("", text), flags=re.MULTILINE)

    add(main)
    return "\n".join(parts.values())
