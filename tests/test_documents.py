"""The documents: commands that exist, links that lead somewhere, code that runs, lines that fit, plain words."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from flwr.cli.app import app as flwr_app
from flwr.common.config import flatten_dict
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

import fedapp
from fedapp import reference
from fedapp.cli import app as fedapp_app
from fedapp.commandline import read_overrides
from fedapp.data import configured_images
from fedapp.parsing import parse_run_config
from fedapp.runner import planned_config
from fedapp.sweeps import read_runs
from fedapp.tables import Value
from tests.support.documents import (
    FENCE,
    LINK,
    ROOT,
    Block,
    anchors,
    blocks,
    commands,
    documents,
    without_code,
    written_files,
)

WIDTH = 100
README = ROOT / "README.md"
SHELL = ("bash", "sh")
# What the prose rules replace: by fix, restart, its own, N, the result.
UNWANTED = re.compile(
    r"\b(mend(ed|s|ing)?|afresh|of (its|their|our) own|what (it|they|this) came to|so many)\b"
)
# Names that the style replaces; `too-long` stands only beside the name that it stands for.
OLD_NAMES = re.compile(r"\b(_bury|_told|_said|_twice)\b|thin_round|too-long(?!.*on-long-update)")
GENERATED = [ROOT / "docs" / name for name in reference.pages()]
# Programs whose arguments are not checked here.
OTHERS = {"source", "sudo", "nginx", "ssh", "export", "for", "done", "docker", "mkdocs"}
APPS = {"fedapp": fedapp_app, "flwr": flwr_app}
OF_FLOWER = {
    "flower-superlink": _parse_args_run_superlink,
    "flower-supernode": _parse_args_run_supernode,
}


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def mentions(document: Path) -> Iterator[str]:
    """Yield the commands that a document names within its text; they need not be complete."""
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", FENCE.sub("", document.read_text())):
        if re.match(r"(fedapp [a-z]|flwr [a-z]|python (-m benchmarks|deploy))", span):
            yield " ".join(span.split())


def check_mention(text: str) -> None:
    """Raise if a program has no such command or options."""
    program, *words = text.split()
    options = {word.partition("=")[0] for word in words if re.match(r"--\w", word)}
    if program == "python":
        _check_python([*words[: 1 + (words[0] == "-m")], *options])
        return
    command: click.Command = typer.main.get_command(APPS[program])
    while isinstance(command, click.Group):
        assert words[0] in command.commands, f"{program} has no command {words[0]}"
        command = command.commands[words.pop(0)]
    assert options <= {name for param in command.params for name in param.opts}


def check(words: list[str], document: Path, place: Path) -> None:
    """Raise if a program would not take a command line."""
    program, *arguments = words
    if program == "do":
        program, *arguments = arguments
    if program in ("fedapp", "flwr"):
        _check_click(typer.main.get_command(APPS[program]), program, arguments, document, place)
    elif program in OF_FLOWER:
        given = {word for word in arguments if word.startswith("--")}
        assert given <= set(OF_FLOWER[program]()._option_string_actions)
    elif program == "bash":
        assert (ROOT / arguments[0]).is_file()
    elif program == "pip":
        _check_extras(" ".join(arguments))
    elif program.startswith("python"):
        _check_python(arguments)
    else:
        assert program in OTHERS, f"{program}: check it here, or add it to OTHERS"


def _check_click(
    command: click.Command, name: str, arguments: list[str], document: Path, place: Path
) -> None:
    if isinstance(command, click.Group):
        assert arguments[0] in command.commands, f"{name} has no command {arguments[0]}"
        inner, rest = command.commands[arguments[0]], arguments[1:]
        _check_click(inner, f"{name} {arguments[0]}", rest, document, place)
        return
    params = command.make_context(name, [word for word in arguments if word != "..."]).params
    assignments = [*(params.get("config") or []), *(params.get("run_config_overrides") or [])]
    files = [] if name == "fedapp theory" else [str(path) for path in params.get("presets") or []]
    files += [text for text in assignments if text.endswith(".toml")]
    presets = [_preset(file, document, place) for file in files]
    assignments = [a.replace("$PWD", "/tmp") for a in assignments if a not in files]
    if name == "fedapp run" and presets:
        for preset in presets:
            runs = read_runs(preset)
            for run in (runs[0], runs[-1]):
                planned_config(run, assignments, place)
    elif presets or assignments:
        parse_run_config(_declared_by(document) | read_overrides(presets, assignments))


def _declared_by(document: Path) -> dict[str, Value]:
    """Return the keys that an example project declares."""
    project = document.parent / "pyproject.toml"
    if not project.is_file() or document.parent == ROOT:
        return {}
    return dict(flatten_dict(tomllib.loads(project.read_text())["tool"]["flwr"]["app"]["config"]))


def _preset(file: str, document: Path, place: Path) -> Path:
    """Return the file that a document calls so."""
    if file in written_files(document):
        return place / file
    assert (ROOT / file).is_file(), f"there is no {file}"
    return ROOT / file


def _check_extras(arguments: str) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"\[([\w,]+)\]", arguments):
        assert set(extras.split(",")) <= set(known)


def _check_python(arguments: list[str]) -> None:
    """Check that a script or module exists, and that its source has the options."""
    if arguments[:1] == ["-m"]:
        found = importlib.util.find_spec(arguments[1])
        assert found and found.origin, f"there is no module {arguments[1]}"
        if not found.origin.startswith(str(ROOT / "benchmarks")):
            return
        source = Path(found.origin).read_text()
        for other in re.findall(r"^from benchmarks\.(\w+) import", source, re.MULTILINE):
            source += (ROOT / "benchmarks" / f"{other}.py").read_text()
    else:
        source = (ROOT / arguments[0]).read_text()
    for option in (word for word in arguments[1:] if word.startswith("--")):
        assert f'"{option}"' in source, f"{arguments} has no {option}"


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_command_of_a_document_is_one_that_its_program_takes(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in written_files(document).items():
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(document.parent)  # an example's package
    problems = []
    for words in (w for b in blocks(document) if b.language in SHELL for w in commands(b)):
        try:
            check(words, document, tmp_path)
        except Exception as error:
            problems.append(f"{' '.join(words)}\n  {type(error).__name__}: {error}")
    for text in mentions(document):
        try:
            check_mention(text)
        except Exception as error:
            problems.append(f"{text}\n  {type(error).__name__}: {error}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "command",
    [
        "fedapp rum",
        "fedapp run --engin inline",
        "fedapp run -c 'algoritm=\"fedavg\"'",
        "fedapp run missing.toml",
        "flwr run . --streem",
        "flwr run . -c 'lr=\"a\"'",
        "python deploy/federation.py --nods 3",
        "python -m benchmarks.missing",
        "pip install -e '.[missing]'",
        "flower-supernode --superlnk a",
        "curl example.org",
    ],
)
def test_a_command_that_would_fail_is_noticed(command: str, tmp_path: Path) -> None:
    (words,) = commands(Block(README, "bash", command))
    with pytest.raises(Exception, match=r"."):
        check(words, README, tmp_path)


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    dead = []
    for target in LINK.findall(without_code(document)):
        if target.startswith(("http://", "https://")):
            assert re.fullmatch(r"https?://[\w.-]+\.\w+(/\S*)?", target), target
            continue
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        if not place.exists() or (anchor and anchor not in anchors(place)):
            dead.append(target)
    assert not dead


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_python_in_a_document_compiles_and_imports_what_exists(document: Path) -> None:
    for block in blocks(document):
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and node.module == "fedapp":
                assert {alias.name for alias in node.names} <= set(fedapp.__all__)


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_lines_outside_tables_have_at_most_100_characters(document: Path) -> None:
    lines = enumerate(document.read_text().splitlines(), 1)
    long = [n for n, line in lines if len(line) > WIDTH and not line.lstrip().startswith("|")]
    assert not long, f"lines {long}: `python .ci/wrap {name_of(document)}` wraps paragraphs"


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_words_that_the_style_replaces_are_gone(document: Path) -> None:
    text = re.sub(r"\s+", " ", document.read_text())
    # The generated pages quote the declarations of keys.
    found = [] if document in GENERATED else [m.group() for m in UNWANTED.finditer(text)]
    assert not found


def test_names_that_the_style_replaces_are_gone() -> None:
    code = [
        file
        for folder in ("fedapp", "strategies", "clients", "benchmarks", "deploy", "examples",
                       "experiments", "tests")
        for pattern in ("*.py", "*.toml")
        for file in (ROOT / folder).rglob(pattern)
    ]  # fmt: skip
    found = [
        f"{name_of(file)}:{n}: {match.group()}"
        for file in [*code, *GENERATED, ROOT / "pyproject.toml"]
        if file != Path(__file__)
        for n, line in enumerate(file.read_text().splitlines(), 1)
        if (match := OLD_NAMES.search(line))
    ]
    assert not found


def test_the_readme_is_read_in_two_minutes() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= 120
    assert lines[0] == "---"
    assert lines[1].startswith("tags: [")
    assert lines[2].startswith("dataset: [")


def test_every_page_is_on_the_map() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {
        (index.parent / t.partition("#")[0]).resolve() for t in LINK.findall(index.read_text())
    }
    missing = [
        p.name for p in documents() if p.parent == index.parent and p not in {index, *linked}
    ]
    assert not missing, "link them in docs/index.md"


@pytest.mark.parametrize("name", reference.pages())
def test_generated_pages_are_up_to_date(name: str) -> None:
    committed = (ROOT / "docs" / name).read_text()
    assert committed == reference.pages()[name], "run `python -m fedapp.reference docs`"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-W",
        "always::DeprecationWarning",
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "mkdocs/structure" not in done.stderr, "a hook uses what mkdocs deprecates"
    pages = list((tmp_path / "site").rglob("*.html"))
    for page in documents():
        if page.parent == ROOT / "docs" and page.stem != "index":
            assert tmp_path / "site" / page.stem / "index.html" in pages
    api = (tmp_path / "site" / "api" / "index.html").read_text()
    assert all(f'id="{place}.{name}"' in api for name, place in fedapp._PLACES.items())
    # Nothing is fetched when it is read.
    fetched = [
        (page.name, found)
        for page in pages
        for found in re.findall(
            r'<(?:script|img|link)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text()
        )
    ]
    assert not fetched


def run_shell(text: str, directory: Path) -> str:
    """Run commands with this environment's programs, and a home directory of the test."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HOME": str(directory)}
    done = subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_s_comparison_gives_its_figure_and_table(tmp_path: Path) -> None:
    (block,) = [b for b in blocks(README) if "compare.toml" in b.text]
    short, changed = re.subn(r"num-rounds = \d+", "num-rounds = 2", block.text)
    assert changed == 1
    printed = run_shell(short.replace("seed = [0, 1, 2]", "seed = [0]"), tmp_path)
    assert (tmp_path / "compare.png").stat().st_size > 10_000
    table = printed[printed.rindex("| run |") :] if "| run |" in printed else printed
    assert all(name in table.lower() for name in ("fedavg", "scaffold", "fedcomgate", "fedpaq"))


def test_the_readme_s_own_model_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (block,) = [b for b in blocks(README) if b.language == "python"]
    names: dict[str, object] = {}
    exec(compile(block.text.replace("num_rounds=20", "num_rounds=2"), "README.md", "exec"), names)
    assert len(names["result"].rounds) == 2  # type: ignore[attr-defined]


def test_the_parquet_lines_write_what_a_run_reads(tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    (block,) = [b for b in blocks(ROOT / "docs" / "own-data.md") if "to_parquet" in b.text]
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("healthy", "rust"):
            folder = tmp_path / "data" / "leaves" / split / label
            folder.mkdir(parents=True)
            for k in range(3):
                pixels = draw.integers(0, 256, (40 + k, 40, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{k}.png")
        (tmp_path / "parquet" / "leaves").mkdir(parents=True, exist_ok=True)
        text = block.text.replace("/home/me", str(tmp_path)).replace('"train"', f'"{split}"')
        exec(compile(text.replace("train-0", f"{split}-0"), "own-data.md", "exec"), {})
    config = parse_run_config({"dataset": "leaves", "data-dir": str(tmp_path / "parquet")})
    data = configured_images(config)
    assert len(data.train_labels) == 6
    assert data.num_classes == 2


def test_containers_copy_and_start_what_exists() -> None:
    for file in (ROOT / "Dockerfile", ROOT / "deploy" / "Dockerfile"):
        for line in file.read_text().splitlines():
            instruction, _, rest = line.partition(" ")
            if instruction == "COPY":
                assert all((ROOT / name).exists() for name in rest.split()[:-1])
            if instruction == "CMD":
                assert rest == '["flwr", "run", ".", "--stream"]'
                assert "flwr run . --stream" in README.read_text()
    copied = re.findall(r"^COPY (\w+) \1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]
    assert copied == wheel["wheel"]["packages"]


def test_no_document_names_a_place_of_one_machine() -> None:
    for document in documents():
        assert not re.search(r"/root/|/tmp/w/|localhost:\d+/", document.read_text())


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_shell_blocks_are_valid_shell() -> None:
    for document in documents():
        for block in blocks(document):
            if block.language in SHELL:
                done = subprocess.run(
                    ["bash", "-n"], input=block.text, text=True, capture_output=True
                )
                assert done.returncode == 0, f"{name_of(document)}: {done.stderr}"
