"""The page's script: its modules put together."""

import re

import pytest

from fedapp.report.script import WEB, bundle

DECLARED = re.compile(r"^(?:export )?(?:const|let|class|function) (\w+)", re.MULTILINE)


ENTRIES = {"page.js", "live.js"}  # for the page as a file, and for the one that is served


@pytest.mark.parametrize("entry", sorted(ENTRIES))
def test_every_module_is_there_once_after_those_it_needs(entry: str) -> None:
    script = bundle(entry)
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    names = DECLARED.findall(script)
    assert len(names) == len(set(names)), "modules share one scope, and must not use a name twice"
    for path in WEB.glob("*.js"):
        if path.name in ENTRIES - {entry}:
            continue
        text = path.read_text(encoding="utf-8")
        own = DECLARED.findall(text)
        assert set(own) <= set(names), path.name
        for imported in re.findall(r"^import \{([^}]*)\}", text, re.MULTILINE):
            for name in imported.replace(" ", "").split(","):
                if own:
                    assert names.index(name) < names.index(own[0]), (path.name, name)


def test_modules_import_what_they_use() -> None:
    """Put together they would see each other's names without an import."""
    exported = {
        name: path.name
        for path in WEB.glob("*.js")
        for name in re.findall(
            r"^export (?:const|class|function) (\w+)",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }
    for path in WEB.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        imported = {
            name.strip(): origin
            for names, origin in re.findall(
                r'^import \{([^}]*)\} from "\./(.*)";', text, re.MULTILINE
            )
            for name in names.split(",")
        }
        assert all(exported.get(name) == origin for name, origin in imported.items()), path.name
        code = re.sub(r"^import .*$|//.*$|/\*.*?\*/", "", text, flags=re.MULTILINE)
        called = set(re.findall(r"(?<![.\w])(\w+)(?=[(\[])", code))
        used = {name for name in called if exported.get(name, path.name) != path.name}
        assert used <= imported.keys(), (path.name, used - imported.keys())
        unused = [name for name in imported if not re.search(rf"\b{name}\b", code)]
        assert not unused, (path.name, unused)


def test_only_the_served_page_asks_for_more() -> None:
    assert "fetch(" not in bundle("page.js")
    assert "fetch(" in bundle("live.js")
