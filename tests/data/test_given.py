"""The `dataset` door: a user's function gives the data."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from pandas import DataFrame  # type: ignore[import-untyped]
from PIL import Image

from fedapp.data import cache
from fedapp.doors import register
from fedapp.errors import ConfigError, UserCodeError
from fedapp.parsing import parse_run_config
from fedapp.problems import kind_of, make_problem
from fedapp.problems.network import NetworkProblem
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds

RNG = np.random.default_rng(3)
TABLE = RNG.normal(size=(60, 3))
NUMBERS = TABLE @ [1.0, -2.0, 0.5]
CLASSES = (NUMBERS > 0).astype(np.int64)
IMAGES = RNG.integers(0, 256, (60, 1, 6, 6), dtype=np.uint8)
IMAGES[CLASSES == 1, :, :3] //= 4
TOKENS = RNG.integers(1, 50, (60, 5))
TEXTS = ["yes indeed it is" if c else "no it is never" for c in CLASSES]
GROUPS = np.arange(60) % 4


def png(image: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image[0]).save(buffer, format="PNG")
    return buffer.getvalue()


def halves(*arrays: Any) -> tuple[Any, Any]:
    return tuple(a[:40] for a in arrays), tuple(a[40:] for a in arrays)


FRAME = DataFrame({"a": TABLE[:, 0], "b": TABLE[:, 1], "target": NUMBERS, "ward": GROUPS})
HUB = Dataset.from_dict({"text": TEXTS, "label": CLASSES, "writer": GROUPS})
PICTURES = Dataset.from_dict({"image": [png(i) for i in IMAGES], "label": CLASSES})
# What a function returns; which problem that is; a network for it; training samples.
GIVEN: dict[str, tuple[Any, str, str, int]] = {
    "numbers": (halves(TABLE, NUMBERS), "tabular-regression", "logreg", 40),
    "classes": (halves(TABLE, CLASSES), "tabular-classification", "mlp-8", 40),
    "tensors": (halves(torch.tensor(TABLE), torch.tensor(CLASSES)), "tabular-classification", "logreg", 40),
    "float32, words as classes": (halves(TABLE.astype(np.float32), np.where(CLASSES, "up", "down")), "tabular-classification", "logreg", 40),
    "one split": ((TABLE, NUMBERS), "tabular-regression", "logreg", 54),
    "images": (halves(IMAGES, CLASSES), "classification", "mlp-8", 40),
    "images without channels": (halves(IMAGES[:, 0], CLASSES), "classification", "logreg", 40),
    "tokens": (halves(TOKENS, CLASSES), "text-classification", "bag-8", 40),
    "texts": (halves(np.array(TEXTS), CLASSES), "text-classification", "bag-8", 40),
    "by name": ({"train": (TABLE, CLASSES), "test": (TABLE[:9], CLASSES[:9])}, "tabular-classification", "logreg", 60),
    "data frames": ((FRAME[:40], FRAME[40:]), "tabular-regression", "logreg", 40),
    "a data set": (HUB, "text-classification", "bag-8", 54),
    "data sets": (DatasetDict(train=HUB, test=HUB), "text-classification", "gru-8", 60),
    "data sets of images": (DatasetDict(train=PICTURES, validation=PICTURES), "classification", "logreg", 60),
}  # fmt: skip


def config_of(name: str, value: Any, **keys: Value) -> Any:
    register({f"tests.given:{name.replace(' ', '_').replace(',', '')}": lambda: value})
    some: dict[str, Value] = {
        "dataset": f"tests.given:{name.replace(' ', '_').replace(',', '')}",
        "partition": "iid",
        "num-clients": 4,
        "clients-per-round": 2,
    }
    return parse_run_config(some | kebab(keys))


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_trained_follows_from_the_data(name: str) -> None:
    value, problem, model, count = GIVEN[name]
    inferred = make_problem(config_of(name, value, model=model))
    assert isinstance(inferred, NetworkProblem)
    named = make_problem(config_of(name, value, model=model, problem=problem))
    assert isinstance(named, NetworkProblem)
    assert type(inferred.problem) is type(named.problem)
    x, buffers = inferred.initial()
    assert inferred.evaluate(x, buffers) == named.evaluate(x, buffers)
    sizes = [inferred.objective(client).num_examples for client in range(4)]
    assert sum(sizes) == count


@pytest.mark.parametrize("name", ["numbers", "images", "texts"])
def test_a_run_with_the_users_data(name: str, run_inline: RunInline) -> None:
    value, _, model, _ = GIVEN[name]
    config = config_of(name, value, model=model)
    rounds = read_rounds(
        run_inline(dataset=config.dataset, model=model, partition="iid", num_clients=4,
                   clients_per_round=4, num_rounds=8, lr=0.1 if name == "numbers" else 0.5)
    )  # fmt: skip
    assert rounds[-1]["test_loss"] < 0.8 * rounds[0]["test_loss"]


def test_partitions_are_kept_by_the_digest_of_the_labels() -> None:
    where = cache.cache_dir() / "partitions"

    def made(targets: Any) -> set[Path]:
        before = set(where.glob("classes-*"))
        keys: dict[str, Value] = {"partition": "classes", "classes_per_client": 1, "num_clients": 2}
        make_problem(config_of("digest", (TABLE, targets), **keys, model="logreg"))
        return {path for path in where.glob("classes-*") if path.suffix != ".lock"} - before

    assert len(made(CLASSES)) == 1
    assert not made(CLASSES.copy())
    assert len(made(1 - CLASSES)) == 1


def test_groups_are_writers() -> None:
    value = (*(a[:40] for a in (TABLE, NUMBERS, GROUPS)),)
    config = config_of(
        "groups", (value, (TABLE[40:], NUMBERS[40:])), partition="writer", model="logreg"
    )
    problem = make_problem(config)
    assert [problem.objective(client).num_examples for client in range(4)] == [10] * 4
    config = config_of(
        "ward", (FRAME[:40], FRAME[40:]), partition="writer", group="ward", model="logreg"
    )
    assert make_problem(config).facts.shape == (2,)  # type: ignore[union-attr]


def test_the_function_may_take_the_config() -> None:
    register({"tests.given:sized": lambda config: (TABLE[: 10 * config.num_clients], NUMBERS[: 10 * config.num_clients])})  # fmt: skip
    keys: dict[str, Value] = {"dataset": "tests.given:sized", "partition": "iid", "model": "logreg"}
    problem = make_problem(parse_run_config(keys | {"num-clients": 5}))
    assert sum(problem.objective(c).num_examples for c in range(5)) == 45


def test_the_outline_is_that_of_the_data() -> None:
    for name, model in (
        ("numbers", "mlp-8"),
        ("images", "mlp-8"),
        ("images", "logistic"),
        ("tokens", "bag"),
    ):
        value, _, _, _ = GIVEN[name]
        config = config_of(name, value, model=model)
        assert kind_of(config).outline(config).layout == make_problem(config).layout


MISTAKES: dict[str, tuple[Any, dict[str, Value], str]] = {
    "a number": (7, {}, "gives int: return"),
    "lengths": (((TABLE, NUMBERS[:5]), (TABLE, NUMBERS)), {}, "give each the same number of rows"),
    "nothing": (((TABLE[:0], NUMBERS[:0]), (TABLE, NUMBERS)), {}, "at least one"),
    "not finite": ((np.where(TABLE > 9, TABLE, np.nan), NUMBERS), {}, "in row 0, column 0: give finite numbers"),
    "negative classes": ((TABLE, CLASSES - 1), {}, "not classes: give whole numbers from 0"),
    "classes as bytes": ((TABLE, CLASSES.astype("S")), {}, "not classes: give whole numbers from 0"),
    "complex classes": ((TABLE, CLASSES.astype(complex)), {}, "not classes: give whole numbers from 0"),
    "too many classes": ((TABLE, CLASSES * 2**40), {}, "to at most 999999"),
    "channels last": ((IMAGES.transpose(0, 2, 3, 1), CLASSES), {}, "images are numbers"),
    "too many tokens": ((TOKENS, CLASSES), {"text__vocabulary": 10}, "tokens .n, length. from 0 to 9"),
    "one dimension": ((TABLE[:, 0], NUMBERS), {}, "or set problem"),
    "two kinds": ((FRAME, (TABLE, NUMBERS)), {}, "different kinds"),
    "images as a table": ((IMAGES, CLASSES), {"problem": "tabular-classification"}, "a table has"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_used_is_refused_in_a_sentence(name: str) -> None:
    value, keys, said = MISTAKES[name]
    with pytest.raises(ConfigError, match=said):
        make_problem(
            config_of(name, value, model="bag-4" if "tokens" in name else "logreg", **keys)
        )


def test_errors_of_the_users_code_are_the_users() -> None:
    def broken() -> None:
        raise KeyError("column")

    register({"tests.given:broken": broken})
    with pytest.raises(UserCodeError, match="raised KeyError while loading the data"):
        make_problem(parse_run_config({"dataset": "tests.given:broken", "model": "logreg"}))
