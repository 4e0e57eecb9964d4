"""Things of the user's are found by name or as objects, and mistakes are answered in a sentence."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedapp import doors
from fedapp.errors import ConfigError, UserCodeError, traceback_of
from fedapp.parsing import parse_run_config


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a directory whose modules can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_name_is_imported(beside: Path) -> None:
    (beside / "mine.py").write_text("class Outer:\n    class Inner:\n        value = 3\n")
    assert doors.find_object("model", "mine:Outer.Inner").value == 3


def test_an_object_is_found_under_the_name_it_was_given() -> None:
    def here() -> None: ...

    name = doors.name_of(here)
    assert doors.find_object("model", name) is here
    assert doors.name_of(here) == name
    assert doors.given()[name] is here


def test_two_objects_of_one_class_have_two_names() -> None:
    one, two = Path("a"), Path("b")
    assert doors.name_of(one) != doors.name_of(two)
    first, second = (lambda: 1), (lambda: 2)
    assert doors.find_object("model", doors.name_of(first)) is first
    assert doors.find_object("model", doors.name_of(second)) is second


def test_functions_made_by_one_function_have_names_of_their_own() -> None:
    def make(value: int) -> Callable[[], int]:
        def net() -> int:
            return value

        return net

    one, two = make(1), make(2)
    names = doors.name_of(one), doors.name_of(two)
    assert [doors.find_object("model", name)() for name in names] == [1, 2]
    assert (doors.name_of(one), doors.name_of(two)) == names


def test_a_method_has_a_name_after_an_object_that_compares_number_by_number() -> None:
    doors.name_of(np.zeros(3))
    path = Path("a")
    assert doors.name_of(path.as_posix) == doors.name_of(path.as_posix)


def test_methods_of_two_objects_have_two_names() -> None:
    one, two = Path("a"), Path("b")
    names = doors.name_of(one.as_posix), doors.name_of(two.as_posix)
    assert [doors.find_object("model", name)() for name in names] == ["a", "b"]
    assert doors.name_of(one.as_posix) == names[0]


def test_an_object_that_is_given_again_may_have_changed() -> None:
    numbers = [1]
    doors.name_of(numbers)
    before = doors.times_given()
    doors.name_of(numbers)
    assert doors.times_given() != before  # so nothing made from it before is used again


def test_a_redefined_function_takes_the_place_of_the_old_one() -> None:
    made = []
    for value in (1, 2):

        def model(value: int = value) -> int:
            return value

        model.__qualname__ = "model"  # as in a notebook
        made.append((doors.name_of(model), doors.times_given()))
    assert made[0][0] == made[1][0]
    assert made[0][1] != made[1][1]  # so nothing made from the first one is used again
    assert doors.find_object("model", made[1][0])() == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.at.all:x", "put its package beside pyproject.toml"),
        ("fedapp.doors:nothing", "has nothing named nothing"),
        (":x", "write it as package.module:name"),
        ("a b:x", "write it as package.module:name"),
        ("__main__:Net", "give it again with fedapp.run"),
        ("__main__:<lambda>-7", "give it again with fedapp.run"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        doors.find_object("model", name)
    assert not isinstance(caught.value, UserCodeError)
    assert f"model = {name!r}" in str(caught.value)


def test_an_error_in_a_user_s_module_shows_the_user_s_traceback(beside: Path) -> None:
    (beside / "broken.py").write_text("import fedapp\nvalue = 1 / 0\n")
    with pytest.raises(UserCodeError, match="ZeroDivisionError while importing it") as caught:
        doors.find_object("model", "broken:value")
    assert "value = 1 / 0" in traceback_of(caught.value)


def test_a_module_that_the_user_s_module_lacks_is_the_user_s_error(beside: Path) -> None:
    (beside / "lacking.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(UserCodeError, match="ModuleNotFoundError") as caught:
        doors.find_object("model", "lacking:x")
    assert "not_installed_anywhere" in traceback_of(caught.value)


def test_a_function_gets_what_it_takes() -> None:
    assert doors.call_with(lambda: 0, 1, 2) == 0
    assert doors.call_with(lambda a: a, 1, 2) == 1
    assert doors.call_with(lambda a, b: a + b, 1, 2) == 3
    assert doors.call_with(lambda *a: len(a), 1, 2) == 2
    assert doors.call_with(lambda a, b=7: a + b, 1, 2) == 8


def test_options_carry_keys_that_are_not_declared() -> None:
    config = parse_run_config({"options": 'lr=0.5 fedprox.mu=0.3 algorithm="fedprox"'})
    assert (config.lr, config.algorithm) == (0.5, "fedprox")
    assert config.flat()["fedprox.mu"] == 0.3
    assert parse_run_config(config.flat()) == config


@pytest.mark.parametrize("options", ["lr", "lr=", "options=3", "lr=0.1 and more"])
def test_options_that_are_not_understood_are_refused(options: str) -> None:
    with pytest.raises(ConfigError, match=r"options = .*key=value"):
        parse_run_config({"options": options})


def test_an_unknown_key_in_options_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no config key 'lrr' .did you mean 'lr'"):
        parse_run_config({"options": "lrr=3"})


def test_a_key_that_is_set_twice_to_different_values_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lr is 0\.1 and in options 0\.5: set it in one"):
        parse_run_config({"lr": 0.1, "options": "lr=0.5"})
    assert parse_run_config({"lr": 0.5, "options": "lr=0.5"}).lr == 0.5
