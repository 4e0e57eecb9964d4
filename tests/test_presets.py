"""The files of the papers' experiments have the settings that the supplements name."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedapp.sweeps import read_runs
from fedapp.tables import Value
from tests.support.runs import run

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
GRADMA = ["mnist", "mnist-hidden3", "cifar10", "cifar100", "tiny-imagenet"]
CONVOLUTIONAL = ["cifar10-lenet5", "cifar10-resnet18", "cifar100-vgg11", "cifar100-vgg19"]
VIT = ["cifar100-vit", "tiny-imagenet-vit"]
FEDPAQ = ["fig1-top", "fig1-bottom", "fig2", "fig3", "fig4"]


@cache
def runs_of(file: str) -> list[dict[str, Value]]:
    """Return the keys of a file's runs, of which some have tens of thousands: read once."""
    return [run.values for run in read_runs(EXPERIMENTS / f"{file}.toml")]


def values(file: str, key: str, algorithm: str = "") -> set[Any]:
    """Return what a key is set to in a file's runs, or in those of one algorithm."""
    runs = runs_of(file)
    chosen = [run for run in runs if algorithm in ("", run.get("algorithm"))]
    assert chosen, f"{file} has no run of {algorithm}"
    return {run.get(key) for run in chosen}


def assert_settings(file: str, settings: dict[str, Value]) -> None:
    found = {key: values(file, key) for key in settings}
    assert found == {key: {value} for key, value in settings.items()}


@pytest.mark.parametrize("file", GRADMA)
def test_gradma_has_the_study_of_its_appendix(file: str) -> None:
    file = f"gradma/{file}"
    assert_settings(
        file,
        {"num-clients": 100, "local-steps": 5, "batch-size": 64, "partition": "dirichlet"},
    )
    assert values(file, "clients-per-round") == {5, 10, 50}
    assert values(file, "partition-alpha") == {0.01, 0.1, 1.0}
    assert values(file, "lr") == {0.001, 0.01, 0.1}
    assert len(values(file, "seed")) == 3
    assert len(values(file, "algorithm")) == 16
    thirds, tenths = {0.001, 0.01, 0.1}, {0.1, 0.5, 0.9}
    for algorithm in values(file, "algorithm") - {"feddyn"}:
        assert values(file, "server-lr", algorithm) == {0.1, 1.0, 10.0}
    assert values(file, "feddyn.alpha", "feddyn") == thirds
    for algorithm in ("fedprox", "fedproxm"):
        assert values(file, f"{algorithm}.mu", algorithm) == thirds
    for algorithm in ("fedavgm", "mifam", "fedproxm", "moonm", "fedmlbm"):
        assert values(file, f"{algorithm}.beta1", algorithm) == tenths
    for algorithm in ("gradma", "gradma-s"):
        assert values(file, "gradma.memory-size", algorithm) == {100}
        assert values(file, "gradma.beta1", algorithm) == tenths
        assert values(file, "gradma.beta2", algorithm) == tenths


@pytest.mark.parametrize(
    ("file", "dataset", "model", "steps"),
    [
        ("mnist", "mnist", "mlp-200-200", 2500),
        ("mnist-hidden3", "mnist", "mlp-200-200-200", 2500),
        ("cifar10", "cifar10", "lenet5", 5000),
        ("cifar100", "cifar100", "vgg11", 10000),
        ("tiny-imagenet", "tiny-imagenet", "resnet20", 10000),
    ],
)
def test_gradma_has_the_appendix_networks_and_iterations(
    file: str, dataset: str, model: str, steps: int
) -> None:
    assert_settings(
        f"gradma/{file}", {"dataset": dataset, "model": model, "num-rounds": steps // 5}
    )


@pytest.mark.parametrize("file", CONVOLUTIONAL + VIT)
def test_fedbcgd_has_the_settings_of_section_6_4(file: str) -> None:
    batch, epochs = (16, 1) if file in VIT else (50, 5)
    file = f"fedbcgd/{file}"
    assert_settings(
        file,
        {
            "num-clients": 100,
            "samples-per-client": 1000 if file == "fedbcgd/tiny-imagenet-vit" else 500,
            "clients-per-round": 10,
            "batch-size": batch,
            "local-epochs": epochs,
            "lr-schedule": "exponential",
            "lr-decay": 0.998,
            "weight-decay": 0.001,
            "clip-gradient": 10.0,
            "fedbcgd.blocks": 5,
        },
    )
    assert 0.01 in values(file, "server-lr", "fedadam"), "cifar10-slice.toml chooses it"
    momenta = {0.4, 0.5, 0.6, 0.7, 0.8, 0.9}
    assert values(file, "lr") == {0.01, 0.03, 0.05, 0.1, 0.2, 0.3}
    assert values(file, "fedavgm.beta1", "fedavgm") == momenta
    assert values(file, "fedbcgd.momentum", "fedbcgd") == momenta
    assert values(file, "feddc.alpha", "feddc") == {0.01}
    assert values(file, "fedadam.beta1", "fedadam") == {0.9}


@pytest.mark.parametrize("data", ["mnist", "emnist"])
def test_fedbcgd_s_figure_1_has_five_blocks_and_one_epoch(data: str) -> None:
    file = f"fedbcgd/erm-{data}"
    assert_settings(
        file,
        {"local-epochs": 1, "batch-size": 50, "partition-alpha": 0.1, "fedbcgd.blocks": 5},
    )
    assert values(file, "model") == {"logistic", "sigmoid-erm"}
    assert values(file, "feddc.alpha", "feddc") >= {0.01}


@pytest.mark.parametrize("file", FEDPAQ)
def test_fedpaq_has_the_settings_of_section_5(file: str) -> None:
    ratio = 100.0 if file == "fig1-top" else 1000.0
    file = f"fedpaq/{file}"
    assert_settings(
        file,
        {
            "num-clients": 50,
            "batch-size": 10,
            "train-samples": 10000,
            "partition": "iid",
            "time.comm-comp-ratio": ratio,
        },
    )
    runs = [run.values for run in read_runs(EXPERIMENTS / f"{file}.toml")]
    assert {int(r["local-steps"]) * int(r["num-rounds"]) for r in runs} == {200}
    assert len(values(file, "lr")) > 1  # "finely tune the stepsize"


def test_fedcom_has_the_settings_of_its_figures() -> None:
    for file in ("mnist", "fig8", "fig9"):
        assert_settings(
            f"fedcom/{file}",
            {"num-clients": 100, "classes-per-client": 2, "model": "mlp-200-200"},
        )
    assert_settings(
        "fedcom/fig6",
        {
            "num-clients": 1000,
            "clients-per-round": 100,
            "lr": 0.01,
            "model": "mlp-200-200",
            "partition": "writer",
        },
    )


@pytest.mark.slow
def test_no_preset_s_updates_are_unusually_long(tmp_path: Path, long_updates: list[str]) -> None:
    """Of each algorithm of the presets whose data are embedded, the last run: with the largest step sizes."""
    shown = []
    for path in sorted(EXPERIMENTS.glob("*/*.toml")):
        runs = runs_of(path.relative_to(EXPERIMENTS).with_suffix("").as_posix())
        if path.stem == "study" or runs[0].get("dataset", "digits") not in ("digits", "quadratic"):
            continue  # others include a study
        for name, keys in {str(keys.get("algorithm")): keys for keys in runs}.items():
            run(tmp_path / path.stem / name, keys | {"num-rounds": 2, "eval-every": 2})
            assert not long_updates, f"{path.stem}, {name}"
            shown.append(path.stem)
    assert len(set(shown)) > 30
