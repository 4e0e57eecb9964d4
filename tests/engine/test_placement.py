"""Which Ray worker gets how much of which GPU: as pure functions, and from a Ray that believes in two GPUs."""

import os
from collections import Counter
from typing import Any

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from fedapp.engine.placement import MOST_PER_GPU, Node, Placement, device_for_all, place
from fedapp.engine.ray_workers import RayWorkers, _start_own_ray
from fedapp.errors import ConfigError

NODES = st.lists(
    st.fixed_dictionaries({"CPU": st.integers(1, 64)}, optional={"GPU": st.integers(0, 8)}),
    min_size=1,
    max_size=4,
)


def fits(placement: Placement, nodes: list[Node]) -> int:
    """Count the workers that Ray can place: it knows ten thousandths of a GPU, and divides no worker's share."""
    units = round(placement.gpu_share * 10_000)
    return sum(min(int(n["CPU"]), int(n.get("GPU", 0)) * (10_000 // units)) for n in nodes)


@given(nodes=NODES, per_gpu=st.integers(1, MOST_PER_GPU), workers=st.integers(0, 40))
def test_all_workers_fit_and_no_gpu_has_more_than_it_must(
    nodes: list[Node], per_gpu: int, workers: int
) -> None:
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    try:
        placement = place(workers, "auto", per_gpu, nodes)
    except ConfigError as error:
        room = sum(min(n["CPU"], n.get("GPU", 0) * per_gpu) for n in nodes)
        assert workers > room or not room
        assert "\n" not in str(error)
        return
    assert gpus
    assert placement.workers == workers or not workers
    assert fits(placement, nodes) >= placement.workers
    on_each = 10_000 // round(placement.gpu_share * 10_000)
    assert on_each <= per_gpu
    if on_each > 1:  # with one less on each GPU, they would not have fitted
        fewer = sum(min(n["CPU"], n.get("GPU", 0) * (on_each - 1)) for n in nodes)
        assert fewer < placement.workers


@given(nodes=NODES, workers=st.integers(0, 300))
def test_without_gpus_there_is_a_worker_for_each_cpu(nodes: list[Node], workers: int) -> None:
    """As for a run that asks for none, and for "auto" where there are none."""
    cpus = int(sum(node["CPU"] for node in nodes))
    plain: list[Node] = [{"CPU": node["CPU"]} for node in nodes]
    for device, found in (("cpu", nodes), ("auto", plain)):
        if workers > cpus:
            with pytest.raises(ConfigError, match=f"more than the {cpus} CPUs"):
                place(workers, device, 0, found)
        else:
            assert place(workers, device, 0, found) == Placement(workers or cpus, 0.0)


@pytest.mark.parametrize(
    ("device", "per_gpu", "said"),
    [
        ("cuda", 0, 'device = "cuda" needs GPUs'),
        ("auto", 2, "--workers-per-gpu = 2 needs GPUs"),
        ("cpu", 2, 'set device = "auto" or "cuda"'),
        ("auto", -1, "choose 1 to 100"),
        ("auto", 101, "choose 1 to 100"),
    ],
)
def test_what_cannot_be_is_one_sentence(device: str, per_gpu: int, said: str) -> None:
    with pytest.raises(ConfigError) as told:
        place(0, device, per_gpu, [{"CPU": 4}])
    assert said in str(told.value)
    assert str(told.value).endswith(".")


def test_runs_that_share_workers_ask_for_gpus_if_one_of_them_does() -> None:
    assert device_for_all(["cpu", "auto", "cpu"]) == "auto"
    assert device_for_all(["auto", "cuda"]) == "cuda"
    assert device_for_all(["cpu", "cuda:1"]) == "cpu", "it finds its GPU by number"


TWO_AND_ONE = ([("0", 1), ("1", 2)], [("0", 2), ("1", 1)])


def visible(workers: RayWorkers) -> list[str]:
    """Return which GPUs each worker sees: what Ray has put into its environment."""

    def seen(worker: Any) -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "all")

    return list(ray.get([actor.__ray_call__.remote(seen) for actor in workers.actors]))


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_three_workers_share_two_gpus_also_when_one_was_replaced() -> None:
    """Of workers that train nothing, on a Ray that is told of two GPUs: here are none."""
    own_ray = _start_own_ray({"num_cpus": 4, "num_gpus": 2, "log_to_driver": False})
    try:
        with RayWorkers(3, app="json:dumps", device="auto", workers_per_gpu=2) as workers:
            assert sorted(Counter(visible(workers)).items()) in TWO_AND_ONE
            ray.kill(workers.actors[1])
            workers.replace(1)
            assert sorted(Counter(visible(workers)).items()) in TWO_AND_ONE
        with pytest.raises(ConfigError, match="more than the 4 that have a CPU each and fit on 2"):
            RayWorkers(5, device="auto", workers_per_gpu=2)
    finally:
        own_ray.stop()
