"""compile = true: the network is compiled where clients train; needs a C++ compiler, and says so."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem, rehearse
from fedapp.randomness import generator
from fedapp.tables import Value

pytestmark = pytest.mark.slow
KEYS: dict[str, Value] = {"model": "logreg", "compile": True, "num-clients": 50, "partition": "iid"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Compile anew, without vectors, which saves trying what the CPU can do."""
    import torch._inductor.config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with inductor.patch(
        {"cpp.simdlen": 1, "cpp_cache_precompile_headers": False, "compile_threads": 1}
    ):
        yield inductor
    torch.compiler.reset()


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_batches_of_the_full_size_are_compiled_once_and_others_not_at_all() -> None:
    """50 clients have 28 or 29 samples each: batches of 20 and then of 8 or 9."""
    from torch._dynamo.utils import counters

    config = parse_run_config(KEYS | {"batch-size": 20, "local-epochs": 1})
    problem, plain = (
        make_problem(config.model_copy(update={"compile": on})) for on in (True, False)
    )
    counters.clear()
    x = torch.tensor(problem.initial()[0])
    sizes = []
    for client in range(3):
        samples = problem.objective(client), plain.objective(client)
        batches = [
            s.batches(config.local_work, generator(0, "test", client=client)) for s in samples
        ]
        for batch, same in zip(*batches, strict=True):
            sizes.append(len(batch))
            loss, g = samples[0].loss_gradient(x, batch)
            loss_too, g_too = samples[1].loss_gradient(x, same)
            torch.testing.assert_close(loss, loss_too)
            torch.testing.assert_close(g, g_too, rtol=1e-4, atol=1e-6)
            again = samples[0].loss_gradient(x.clone(), batch)
            assert torch.equal(again[0], loss)
            assert torch.equal(again[1], samples[0].loss_gradient(x, batch)[1])
    assert set(sizes) > {20}, "there were others"
    assert counters["stats"]["unique_graphs"] == 1


def test_a_missing_compiler_is_one_sentence_before_the_run(own_cache: Any) -> None:
    config = parse_run_config(KEYS | {"batch-size": 20})
    with (
        own_cache.patch({"cpp.cxx": ("/no/such/g++",), "fx_graph_cache": False}),
        pytest.raises(ConfigError) as told,
    ):
        rehearse(config, make_problem(config))
    assert str(told.value) == (
        "compile = true needs a C++ compiler where clients train, and torch finds none that works: install g++, or set "
        "compile = false."
    )
