"""Mutants: each is one change that compiles, and those that once passed the clock's tests are among them."""

import ast

from benchmarks import mutants


def test_every_target_and_its_tests_are_there() -> None:
    for path, tests in mutants.files().items():
        assert (mutants.ROOT / path).is_file()
        named = [test for test in tests if test.startswith("tests/")]
        assert named
        assert all((mutants.ROOT / test).exists() for test in named)


def test_a_mutant_is_one_change_that_compiles() -> None:
    path = "clients/scaffold.py"
    original = ast.unparse(ast.parse((mutants.ROOT / path).read_text())).splitlines()
    found = list(mutants.mutants(path))
    assert len({mutant.text for mutant in found}) == len(found) > 5
    for mutant in found:
        compile(mutant.text, path, "exec")
        changed = mutant.text.splitlines()
        assert len(changed) == len(original)
        assert sum(a != b for a, b in zip(original, changed, strict=True)) == 1


def test_the_clock_s_mutants_are_found() -> None:
    changes = {mutant.change for mutant in mutants.mutants("fedapp/traffic.py")}
    assert {"max  ->  min", "0.5  ->  0.9", "SHIFT + draw  ->  SHIFT - draw"} <= changes
