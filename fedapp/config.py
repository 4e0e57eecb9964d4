"""The run config: every key with its type, default and bounds, validated in one place.

`pyproject.toml` declares the same keys and defaults, because Flower refuses a key that is
not declared there; a test keeps the two equal. Keys are kebab-case outside and snake_case
here; an algorithm's own keys are a table of its name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from flwr.common.config import flatten_dict, unflatten_dict
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedapp.errors import ConfigError
from fedapp.keys import declared_keys
from fedapp.names import did_you_mean, is_file_name

Value = bool | int | float | str


@dataclass(frozen=True)
class LocalWork:
    """How much a client trains in a round: steps, or passes over its data if `epochs` > 0."""

    steps: int
    epochs: int
    batch_size: int

    def batch(self, num_examples: int) -> int:
        """Return the size of a client's batches."""
        return min(self.batch_size or num_examples, num_examples)

    def num_steps(self, num_examples: int) -> int:
        """Return tau for a client; the last batch of a pass may be short."""
        per_pass = -(-num_examples // self.batch(num_examples))
        return self.epochs * per_pass if self.epochs else self.steps

    def samples(self, num_examples: int) -> int:
        """Return about how many samples a client trains on."""
        if self.epochs:
            return self.epochs * num_examples
        return self.steps * self.batch(num_examples)


class _Table(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=True,
    )


def _full_path(path: str | bool) -> str | bool:
    if isinstance(path, str) and path and not Path(path).expanduser().is_absolute():
        raise ValueError(
            "should be a full path, because under `flwr run` a relative one would mean a "
            "directory of Flower's"
        )
    return path


def _partitions(text: str) -> dict[int, int]:
    pairs = [re.fullmatch(r"(\d{1,20})=(\d{1,9})", part) for part in text.replace(",", " ").split()]
    partitions = {int(pair[1]): int(pair[2]) for pair in pairs if pair}
    if len(partitions) != len(pairs):
        raise ValueError(
            "should be a list of <node-id>=<partition-id>, each node once, such as '8123=0 9456=1'"
        )
    return partitions


class FedProxKeys(_Table):
    """FedProx."""

    mu: float = Field(0.01, ge=0, description="weight of the proximal term mu (y - x)")


class FedAvgMKeys(_Table):
    """FedAvg with server momentum."""

    beta1: float = Field(0.5, ge=0, lt=1, description="server momentum")


class FedProxMKeys(FedProxKeys, FedAvgMKeys):
    """FedProx with server momentum."""


class FedAdamKeys(_Table):
    """FedAdam, in the notation of Reddi et al."""

    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(1e-3, gt=0, description="added to the root of the second moment")


class MifamKeys(_Table):
    """MIFA with server momentum."""

    beta1: float = Field(0.5, ge=0, lt=1, description="server momentum")


class ScaffoldKeys(_Table):
    """SCAFFOLD."""

    option: Literal[1, 2] = Field(2, description="how a client renews its control variate")


class FedCetKeys(_Table):
    """FedCET."""

    c: float = Field(0.0, description="gain of the exchange; 0: 0.9 of its bound")
    on_failure: Literal["end", "skip"] = Field(
        "end", description="a client gives no update: end the run, or repeat the round"
    )


class FedDynKeys(_Table):
    """FedDyn."""

    alpha: float = Field(0.1, gt=0, description="weight of the proximal term")


class FedDcKeys(_Table):
    """FedDC."""

    alpha: float = Field(0.1, ge=0, description="weight of the drift term")


class MimeLiteKeys(_Table):
    """MimeLite with the momentum of SGD."""

    beta: float = Field(0.9, ge=0, lt=1, description="momentum")


class FedComGateKeys(_Table):
    """FedCOMGATE."""

    memory: Literal["none", "local", "paper"] = Field(
        "none", description="what compression left out is kept and sent later"
    )


class MoonKeys(_Table):
    """MOON."""

    mu: float = Field(1.0, ge=0, description="weight of the contrastive loss")
    temperature: float = Field(0.5, gt=0, description="T of the contrastive loss")


class MoonMKeys(MoonKeys, FedAvgMKeys):
    """MOON with server momentum."""


class FedMlbKeys(_Table):
    """FedMLB."""

    lambda1: float = Field(1.0, ge=0, description="weight of the paths' cross-entropy")
    lambda2: float = Field(1.0, ge=0, description="weight of the paths' divergence")
    temperature: float = Field(1.0, gt=0, description="T of the divergence")


class FedMlbMKeys(FedMlbKeys, FedAvgMKeys):
    """FedMLB with server momentum."""


class GradMaKeys(_Table):
    """GradMA, GradMA-W and GradMA-S."""

    beta1: float = Field(0.5, ge=0, lt=1, description="server momentum")
    beta2: float = Field(0.5, ge=0, lt=1, description="how much of the memory stays each round")
    memory_size: int = Field(0, ge=0, description="clients in the memory; 0: 100, or all if fewer")
    scope: Literal["layer", "model"] = Field("layer", description="what is projected at once")


class FedBcgdKeys(_Table):
    """FedBCGD and FedBCGD+."""

    blocks: int = Field(
        5, ge=1, description="into which the model is divided, beside the shared one"
    )
    momentum: float = Field(0.5, ge=0, lt=1, description="lambda, of the server's step")
    control: Literal["consistent", "printed"] = Field(
        "consistent", description="which of its control variate a client renews (fedbcgd-plus)"
    )


class DianaKeys(_Table):
    """DIANA."""

    alpha: float = Field(0.0, ge=0, le=1, description="step of the shifts h; 0: 1/(1 + q)")


class VrDianaKeys(DianaKeys):
    """VR-DIANA."""

    probability: float = Field(
        0.0, ge=0, le=1, description="of a new snapshot; 0: 1/(batches of the client)"
    )


class QsgdKeys(_Table):
    """The compressor qsgd."""

    levels: int = Field(16, ge=1, le=32767, description="s: levels of a number's size")
    norm: Literal["l2", "max"] = Field("l2", description="what sizes are measured by")
    bucket: int = Field(0, ge=0, le=1 << 40, description="numbers that share a norm; 0: all")


class UniformKeys(_Table):
    """The compressor uniform."""

    bits: int = Field(8, ge=1, le=16, description="bits of a number")
    rounding: Literal["stochastic", "nearest"] = Field("stochastic", description="to a level")
    scope: Literal["tensor", "vector"] = Field("tensor", description="what shares a scale")
    zero_point_noise: int = Field(0, ge=0, description="R: the zero point is off by up to R")


class TopKKeys(_Table):
    """The compressor topk."""

    ratio: float = Field(0.1, gt=0, le=1, description="part of the numbers that is sent")
    values: Literal["none", "float16", "qsgd", "uniform"] = Field(
        "none", description="what compresses these"
    )


class RandKKeys(TopKKeys):
    """The compressor randk."""


class QuadraticKeys(_Table):
    """The quadratic problem, `dataset = "quadratic"`."""

    dim: int = Field(30, ge=1, description="number of coordinates")
    condition: float = Field(10.0, ge=1, description="condition number of every client's Hessian")
    heterogeneity: float = Field(1.0, ge=0, description="spread of the clients' own optima")
    noise: float = Field(0.0, ge=0, description="standard deviation of the gradient noise")
    hessians: Literal["own", "shared"] = Field("own", description="each client's, or the same")
    flat: int = Field(0, ge=0, description="directions in which no client's quadratic changes")


class ErmKeys(_Table):
    """The binary problems, `model = "logistic"` and `"sigmoid-erm"`."""

    positive: int = Field(0, ge=0, description="the class that is told from others")
    negative: int = Field(-1, ge=-1, description="the other class; -1: all the rest")
    regularization: float = Field(1e-4, gt=0, description="lambda over the smoothness L")


class VitKeys(_Table):
    """The model vit-base."""

    image_size: int = Field(224, ge=16, description="side to which images are resized")
    weights: str = Field("", description="a file of torchvision's vit_b_16 weights, or imagenet")

    @field_validator("weights")
    @classmethod
    def _is_full_path(cls, path: str) -> str:
        return path if path == "imagenet" else str(_full_path(path))


class DpKeys(_Table):
    """Differential privacy of whole clients."""

    clip: float = Field(0.0, ge=0, description="largest norm of an update; 0: no privacy")
    noise_multiplier: float = Field(1.0, ge=0, description="z: noise on the sum over clip")
    where: Literal["server", "client"] = Field("server", description="who clips and adds noise")
    delta: float = Field(1e-5, gt=0, lt=1, description="of (epsilon, delta)")
    noise_from: Literal["system", "seed"] = Field("system", description="seed: for research only")
    max_epsilon: float = Field(0.0, ge=0, description="the run ends before it costs more; 0: none")

    @property
    def central(self) -> bool:
        """Whether the server protects what it makes of the updates."""
        return self.clip > 0 and self.where == "server"

    @property
    def local(self) -> bool:
        """Whether clients protect what they send."""
        return self.clip > 0 and self.where == "client"


class TimeKeys(_Table):
    """The simulated clock (FedPAQ, section 5)."""

    comm_comp_ratio: float = Field(
        100.0, ge=0, description="time to send a model over time to train on one sample"
    )


class RunConfig(_Table):
    """Everything that decides what a run computes and where it leaves it."""

    algorithm: str = Field("fedavg", description="see `fedapp algorithms`")
    num_rounds: int = Field(50, ge=1, description="communication rounds")
    num_clients: int = Field(20, ge=1, description="logical clients, over all nodes")
    clients_per_round: int = Field(5, ge=1, description="clients sampled for each round")

    local_steps: int = Field(5, ge=1, description="mini-batch steps of a client in a round")
    local_epochs: int = Field(0, ge=0, description="if > 0, passes over the data instead")
    batch_size: int = Field(32, ge=0, description="0: all of the client's data")
    lr: float = Field(0.2, gt=0, description="local step size")
    lr_schedule: Literal["constant", "exponential", "inverse", "inverse-sqrt"] = Field(
        "constant", description="how lr changes from round to round"
    )
    lr_decay: float = Field(0.998, gt=0, le=1, description="see lr-schedule")
    weight_decay: float = Field(0.0, ge=0, description="added to every local gradient")
    server_lr: float = Field(0.0, ge=0, description="0: the algorithm's own default")
    weighting: Literal["uniform", "examples"] = Field(
        "uniform", description="how updates are averaged"
    )
    aggregation: Literal[
        "mean", "median", "trimmed-mean", "multi-krum", "geometric-median", "centered-clipping"
    ] = Field("mean", description="how updates become one: see docs/robustness.md")
    mixing: Literal["none", "nnm"] = Field("none", description="of the updates, before that")
    hostile: float = Field(
        0.0, ge=0, lt=0.5, description="share of clients assumed hostile; 0: not said"
    )
    trim: float = Field(0.1, ge=0, lt=0.5, description="share left out at each end (trimmed-mean)")
    clip_radius: float = Field(
        0.0, ge=0, description="tau of centered-clipping; 0: the median distance from the centre"
    )
    max_examples: int = Field(0, ge=0, description="that a client may claim; 0: no limit")
    max_update_norm: float = Field(0.0, ge=0, description="of a vector that is sent; 0: no limit")
    too_long: Literal["reject", "clip"] = Field(
        "reject", description="what becomes of an update above max-update-norm"
    )
    max_update_ratio: float = Field(
        1000.0, ge=0, description="of an update's length to the usual one; 0: no limit"
    )
    compressor: Literal["", "none", "float16", "qsgd", "uniform", "topk", "randk"] = Field(
        "", description="of what clients send; empty: the algorithm's own"
    )
    error_feedback: bool = Field(False, description="add what compression lost to the next update")
    seed: int = Field(0, ge=0, description="of everything random")

    dataset: str = Field("digits", description="digits, quadratic, or an image data set")
    data_dir: str = Field("", description="directory that holds <dataset>/train-*.parquet")
    train_samples: int = Field(0, ge=0, description="so many of them, at random; 0: all")
    partition: Literal["iid", "dirichlet", "classes", "writer"] = Field(
        "classes", description="who holds which samples"
    )
    partition_alpha: float = Field(0.5, gt=0, description="of the Dirichlet partition")
    classes_per_client: int = Field(2, ge=1, description="of the classes partition")
    model: str = Field("mlp-200", description="a network's name, logistic or sigmoid-erm")
    norm: Literal["batch", "group"] = Field("batch", description="normalisation in resnet20")
    dtype: Literal["float32", "float64"] = Field("float32", description="of all numbers")
    device: str = Field("cpu", description="cpu, cuda or cuda:<n>, for training and evaluation")

    eval_every: int = Field(1, ge=1, description="evaluate after every so many rounds")
    eval_train: bool = Field(False, description="evaluate on the clients' samples too")
    target_accuracy: float = Field(0.0, ge=0, le=1, description="stop there; 0: never")
    results_dir: str = Field("", description="empty: fedapp-results in the home directory")
    run_name: str = Field("", description="empty: made from algorithm, data set and time")
    tensorboard: bool = Field(False, description="log to TensorBoard too")
    state_dir: str = Field("", description="where clients keep state; empty: with the node")
    on_lost_state: Literal["go-on", "reset"] = Field(
        "go-on", description="a client has lost its state: go on, or start all states afresh"
    )
    checkpoint_every: int = Field(0, ge=0, description="rounds between checkpoints; 0: none")
    resume: bool | str = Field(
        False,
        description="go on from the run's last checkpoint; or the path of a run to go on with",
    )
    min_clients: int = Field(1, ge=1, description="a round with fewer updates is repeated")
    round_retries: int = Field(3, ge=0, description="how often it is repeated")
    round_timeout: float = Field(3600.0, ge=0, description="seconds to wait; 0: no limit")
    node_timeout: float = Field(
        600.0, ge=0, description="seconds to wait for nodes, if too few are there; 0: no limit"
    )
    require_all_clients: Literal["auto", "yes", "no"] = Field(
        "auto", description="whether round 1 needs a node for every client"
    )
    node_partitions: str = Field("", description="<node-id>=<partition-id> ...; empty: any")

    fedprox: FedProxKeys = FedProxKeys()
    fedavgm: FedAvgMKeys = FedAvgMKeys()
    fedproxm: FedProxMKeys = FedProxMKeys()
    fedadam: FedAdamKeys = FedAdamKeys()
    mifam: MifamKeys = MifamKeys()
    scaffold: ScaffoldKeys = ScaffoldKeys()
    fedcomgate: FedComGateKeys = FedComGateKeys()
    fedcet: FedCetKeys = FedCetKeys()
    feddyn: FedDynKeys = FedDynKeys()
    feddc: FedDcKeys = FedDcKeys()
    mimelite: MimeLiteKeys = MimeLiteKeys()
    moon: MoonKeys = MoonKeys()
    moonm: MoonMKeys = MoonMKeys()
    fedmlb: FedMlbKeys = FedMlbKeys()
    fedmlbm: FedMlbMKeys = FedMlbMKeys()
    gradma: GradMaKeys = GradMaKeys()
    fedbcgd: FedBcgdKeys = FedBcgdKeys()
    diana: DianaKeys = DianaKeys()
    vrdiana: VrDianaKeys = VrDianaKeys()
    qsgd: QsgdKeys = QsgdKeys()
    uniform: UniformKeys = UniformKeys()
    topk: TopKKeys = TopKKeys()
    randk: RandKKeys = RandKKeys()
    quadratic: QuadraticKeys = QuadraticKeys()
    erm: ErmKeys = ErmKeys()
    vit: VitKeys = VitKeys()
    time: TimeKeys = TimeKeys()
    dp: DpKeys = DpKeys()

    @field_validator("run_name", "dataset")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError("should be made of letters, digits, '.', '_' and '-' only")
        if name and not is_file_name(name):
            raise ValueError(
                "should be a name that every system takes: no '.' at its end, and no device such as CON, NUL or COM1"
            )
        return name

    @field_validator("node_partitions")
    @classmethod
    def _are_partitions(cls, text: str) -> str:
        places = set(_partitions(text).values())
        if places != set(range(len(places))):
            raise ValueError("should name a node for each partition from 0 to the largest")
        return text

    @field_validator("data_dir", "state_dir", "resume")
    @classmethod
    def _is_full_path(cls, path: str | bool) -> str | bool:
        return _full_path(path)

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        if self.clients_per_round > self.num_clients:
            raise ValueError(
                f"clients-per-round = {self.clients_per_round} is more than there are clients: "
                f"set it to at most num-clients = {self.num_clients}"
            )
        if self.min_clients > self.clients_per_round:
            raise ValueError(
                f"min-clients = {self.min_clients} can never be met: set it to at most "
                f"clients-per-round = {self.clients_per_round}"
            )
        if self.resume is True and not self.run_name:
            raise ValueError(
                "resume = true needs to know which run: set run-name, or resume to its path"
            )
        if self.lr_schedule.startswith("inverse") and self.local_epochs:
            raise ValueError(
                f'lr-schedule = "{self.lr_schedule}" needs to know tau: set local-steps, '
                "and local-epochs = 0"
            )
        return self

    @property
    def options(self) -> Any:
        """The algorithm's own keys, or None if it has none; a variant such as gradma-w shares gradma's."""
        return getattr(self, self.algorithm.partition("-")[0], None)

    @property
    def partition_of(self) -> dict[int, int]:
        """The partition of each node that `node-partitions` names; empty if it names none."""
        return _partitions(self.node_partitions)

    @property
    def local_work(self) -> LocalWork:
        """What a client does in a round."""
        return LocalWork(self.local_steps, self.local_epochs, self.batch_size)

    def lr_at(self, round_: int) -> float:
        """Return the local step size of a round (the first is 1)."""
        k, tau = round_ - 1, self.local_steps
        factors: dict[str, float] = {
            "constant": 1.0,
            "exponential": self.lr_decay**k,
            "inverse": 1 / (k * tau + 1),  # FedPAQ, theorem 1: lr = 4/mu
            "inverse-sqrt": (self.num_rounds * tau) ** -0.5,  # FedPAQ, theorem 2: lr = 1/L
        }
        return self.lr * factors[self.lr_schedule]

    def flat(self) -> dict[str, Value]:
        """Return the config as Flower writes it: one level, kebab-case, dotted tables."""
        return dict(flatten_dict(self.model_dump(by_alias=True)))


def parse_run_config(values: Mapping[str, Value]) -> RunConfig:
    """Validate a flat run config; whatever is wrong becomes one sentence."""
    try:
        return RunConfig.model_validate(unflatten_dict(dict(values)))
    except ValidationError as invalid:
        raise ConfigError(_sentence(invalid)) from None
    except TypeError:  # one key is a value and a table at once
        raise ConfigError("A config key is given both a value and keys of its own.") from None


def _sentence(invalid: ValidationError) -> str:
    problem = invalid.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"])
    keys = {declared.path: declared for declared in declared_keys(RunConfig)}
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        near = did_you_mean(key, keys)
        return f"There is no config key '{key}'{near}: `fedapp config` lists those there are."
    if not key:  # a check over several keys names them itself
        return f"{message}."
    if problem["type"] == "model_type":
        return f"{key} is a table of keys: set {key}.<key> instead."
    message = message.removeprefix("Input ")
    near = did_you_mean(str(problem["input"]), keys[key].names) if key in keys else ""
    return f"{key} = {problem['input']!r} is not allowed{near}: it {message}."
