"""The keys of every run, each with its type, default, bounds and description.

The tables of algorithms, compressors and problems are declared beside these; `fedapp/parsing.py` puts them together.
This module is long only because it is a list of declarations, one for each key.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedapp.doors import is_outside
from fedapp.models.keys import LoraKeys, Pattern
from fedapp.names import is_file_name
from fedapp.tables import T, Table, Value, full_path
from fedapp.trackers import TRACKERS

RENAMED = {"too-long": "on-long-update"}  # earlier names of keys


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


def _partitions(text: str) -> dict[int, int]:
    pairs = [re.fullmatch(r"(\d{1,20})=(\d{1,9})", part) for part in text.replace(",", " ").split()]
    partitions = {int(pair[1]): int(pair[2]) for pair in pairs if pair}
    if len(partitions) != len(pairs):
        raise ValueError(
            "should be a list of <node-id>=<partition-id>, each node once, such as '8123=0 9456=1'"
        )
    return partitions


def budget_of(text: str) -> tuple[float, str] | None:
    """Return what a budget allows: a number of "bytes" in all, or of "bits" a number; None if it is not one."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?(B|kB|MB|GB|bits?)", text.strip())
    if not found or not float(found[1]):
        return None
    if found[2].startswith("bit"):
        return float(found[1]), "bits"
    return float(found[1]) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[found[2]], "bytes"


def with_new_names(values: dict[str, Value]) -> dict[str, Value]:
    """Return a flat config with the values of renamed keys under their new names only."""
    moved = {new: values[old] for old, new in RENAMED.items() if values.get(old)}
    return values | moved | dict.fromkeys(RENAMED.keys() & values.keys(), "")


class DpKeys(Table):
    """Differential privacy of whole clients."""

    clip: float = Field(
        0.0,
        ge=0,
        description="differential privacy: largest Euclidean norm of what a client contributes; 0: none",
    )
    noise_multiplier: float = Field(
        1.0,
        ge=0,
        description="z: standard deviation of the noise on the sum of a round's updates, over clip",
    )
    where: Literal["server", "client"] = Field(
        "server",
        description='who clips and adds noise: the "server", to the mean; or each "client", before it sends',
    )
    delta: float = Field(
        1e-5, gt=0, lt=1, description="delta of (epsilon, delta); well below 1/num-clients"
    )
    noise_from: Literal["system", "seed"] = Field(
        "system",
        description='"system": the operating system\'s entropy, for cohorts too; or "seed": reproducible, and protects nobody',
    )
    max_epsilon: float = Field(
        0.0,
        ge=0,
        description="the run ends before a round that would cost more than this in all; 0: no limit",
    )

    @property
    def central(self) -> bool:
        """Whether the server protects what it makes of the updates."""
        return self.clip > 0 and self.where == "server"

    @property
    def local(self) -> bool:
        """Whether clients protect what they send."""
        return self.clip > 0 and self.where == "client"


class TimeKeys(Table):
    """The simulated clock (FedPAQ, section 5)."""

    comm_comp_ratio: float = Field(
        100.0,
        ge=0,
        description="simulated clock: time to send a model over time to train on one sample",
    )
    downlink: bool = Field(
        False,
        description="simulated clock: what the server sends takes time, too, over the same channel; the papers leave it out",
    )


class GridKeys(Table):
    """The downlink on a grid."""

    kappa: float = Field(
        1.0,
        gt=0,
        le=1024,
        description='downlink = "grid": step of the grid over how far the model moved in a round; above 2, exact methods may stall',
    )
    keep: int = Field(
        16,
        ge=1,
        description="past models that the server keeps; a client that was away for longer receives the whole model",
    )


class OptimizerKeys(Table):
    """The clients' optimizer."""

    momentum: float = Field(
        0.9, ge=0, lt=1, description='client-optimizer = "momentum": weight of earlier gradients'
    )
    beta1: float = Field(
        0.9, ge=0, lt=1, description='client-optimizer = "adam": decay of the mean gradient'
    )
    beta2: float = Field(
        0.999, ge=0, lt=1, description='client-optimizer = "adam": decay of the mean square'
    )
    eps: float = Field(
        1e-8, gt=0, description='client-optimizer = "adam": added to the root of the mean square'
    )
    state: Literal["reset", "keep"] = Field(
        "reset",
        description='state of momentum and adam: "reset": zero at the start of every round; "keep": each client keeps it until its next round',
    )


class RunConfig(Table):
    """Everything that decides what a run computes and where it leaves it."""

    algorithm: str = Field("fedavg", description="see `fedapp algorithms`")
    num_rounds: int = Field(50, ge=1, description="communication rounds")
    num_clients: int = Field(20, ge=1, description="logical clients, over all nodes")
    clients_per_round: int = Field(5, ge=1, description="clients sampled for each round")

    local_steps: int = Field(5, ge=1, description="mini-batch steps of a client in a round")
    local_epochs: int = Field(
        0, ge=0, description="if > 0, passes over the client's data instead of local-steps"
    )
    batch_size: int = Field(32, ge=0, description="0: all of the client's data")
    lr: float = Field(0.2, gt=0, description="local step size")
    lr_schedule: Literal["constant", "exponential", "inverse", "inverse-sqrt"] = Field(
        "constant",
        description='in round k + 1: "constant"; "exponential": lr * lr-decay^k; "inverse": lr / (k tau + 1); "inverse-sqrt": lr / sqrt(num-rounds tau)',
    )
    lr_decay: float = Field(0.998, gt=0, le=1, description="see lr-schedule")
    warmup_rounds: int = Field(
        0,
        ge=0,
        description="the first W rounds use 1/(W + 1), 2/(W + 1), ... of the step size that lr-schedule gives; 0: none",
    )
    client_optimizer: Literal["sgd", "momentum", "adam"] = Field(
        "sgd",
        description='local steps: "sgd", or, where the algorithm allows it, "momentum" or "adam": see docs/training.md',
    )
    clip_gradient: float = Field(
        0.0,
        ge=0,
        description="largest Euclidean norm of a local mini-batch gradient, before weight decay; 0: no limit",
    )
    weight_decay: float = Field(
        0.0, ge=0, description="added, times the model, to every local gradient"
    )
    server_lr: float = Field(
        0.0,
        ge=0,
        description="server step size; 0: the algorithm's own default (see `fedapp algorithms`)",
    )
    weighting: Literal["uniform", "examples"] = Field(
        "uniform",
        description='mean of the updates: "uniform", or "examples": by the client\'s data',
    )
    aggregation: Literal[
        "mean", "median", "trimmed-mean", "multi-krum", "geometric-median", "centered-clipping"
    ] = Field(
        "mean",
        description='rule for a round\'s updates: "mean"; against a few hostile clients "median" or "trimmed-mean", number by number, "multi-krum", "geometric-median", "centered-clipping": see docs/robustness.md',
    )
    mixing: Literal["none", "nnm"] = Field(
        "none",
        description='"nnm": before that, every update becomes the mean of its nearest ones, for clients whose data differ; or "none"',
    )
    hostile: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="share of clients assumed hostile, below 0.5: multi-krum and nnm need it, other rules are checked against it; 0: not said",
    )
    trim: float = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="trimmed-mean: the share of clients left out at each end; below the share of hostile clients it protects nobody",
    )
    clip_radius: float = Field(
        0.0,
        ge=0,
        description="centered-clipping: largest distance of an update from the last aggregate; 0: the median of these distances",
    )
    max_examples: int = Field(
        0, ge=0, description="a client that claims more examples than this has failed; 0: no limit"
    )
    max_update_norm: float = Field(
        0.0,
        ge=0,
        description="largest Euclidean norm of a vector that a client sends (statistics such as BatchNorm's then go by their median); 0: no limit",
    )
    on_long_update: Literal["reject", "clip"] = Field(
        "reject",
        description='an update above max-update-norm: "reject" it, as a failed client, or "clip" it to that length',
    )
    too_long: Literal["", "reject", "clip"] = Field(
        "", description='the earlier name of on-long-update, "reject" or "clip"; empty: not set'
    )
    max_update_ratio: float = Field(
        1000.0,
        ge=0,
        description="an update longer than this times the usual length (a running median; see fedapp/lengths.py) is a failed client; 0: no limit",
    )
    compressor: str = Field(
        "",
        description='compressor of what clients send: "none", "float16", "bfloat16", "qsgd", "uniform", "dithered", "natural", "sign", "topk", "ternary", "randk", "lowrank", "contextual"; empty: the algorithm\'s own (see `fedapp algorithms`)',
    )
    error_feedback: bool | Literal["ef21"] = Field(
        False,
        description='true: clients add what compression lost to their next update; "ef21": they send how their update has changed',
    )
    downlink: Literal["none", "grid"] = Field(
        "none",
        description='what clients receive: "none": as it is; "grid": rounded, as the entropy-coded difference to what they received last: see docs/downlink.md',
    )
    uplink_budget: str = Field(
        "",
        description='most that a client sends in a round, such as "50 kB", or "2 bits" for every number: the compressor\'s setting is chosen to fit; empty: as it is set',
    )
    seed: int = Field(0, ge=0, description="seed of all random draws")

    problem: str = Field(
        "",
        description='"classification" (images), "tabular-regression", "tabular-classification", "text-classification", "next-character"; empty: what dataset and model say; "package.module:name": your own Problem',
    )
    dataset: str = Field(
        "digits",
        description='"digits", "diabetes", "breast_cancer", "wine", "speeches", "shakespeare" (embedded), "quadratic"; mnist, fashion_mnist, cifar10, cifar100, tiny-imagenet, femnist, emnist or "owner/name" (hub); a name in data-dir; "package.module:name": your own function',
    )
    data_dir: str = Field(
        "",
        description="full path of a directory that holds <dataset>/train-*.parquet and test-*.parquet, or other files: see docs/data.md; empty: the Hugging Face hub",
    )
    features: str = Field(
        "",
        description="columns of a table to predict from, or of texts: names separated by spaces or commas; empty: all numbers but target and group",
    )
    target: str = Field(
        "", description="the column to predict; empty: target, label or y, whichever is there"
    )
    group: str = Field(
        "",
        description='the column that says whose each row is, for partition = "writer"; empty: writer_id, writer or speaker',
    )
    train_samples: int = Field(
        0, ge=0, description="if > 0, only this many of the training samples, chosen at random"
    )
    server_data: bool = Field(
        True,
        description="false: the server loads no data; what it must know about them, the nodes tell it before round 1",
    )
    facts: str = Field(
        "",
        description="with server-data = false: what the nodes would tell, as JSON (see docs/evaluation.md); empty: they are asked",
    )
    partition: Literal["iid", "dirichlet", "classes", "writer"] = Field(
        "classes",
        description='who holds which samples: "iid"; by class, or tenth of a number, "dirichlet" or "classes"; "writer": by writer, speaker or group',
    )
    partition_alpha: float = Field(
        0.5, gt=0, description="concentration of the Dirichlet partition: smaller is more uneven"
    )
    classes_per_client: int = Field(
        2, ge=1, description='partition = "classes": classes that each client holds'
    )
    samples_per_client: int = Field(
        0,
        ge=0,
        description="if > 0, every client draws this many samples, as partition says, and shares them with others: for more clients than samples; 0: every sample is one client's",
    )
    augmentation: Literal["none", "crop-flip", "resize-crop", "random-resized-crop"] = Field(
        "none",
        description='change of training images: "none"; "crop-flip": shifted by up to 4 pixels, half of them mirrored; "resize-crop": a window of the image enlarged by 8/7; "random-resized-crop": a part of any size, enlarged',
    )
    model: str = Field(
        "mlp-200",
        description='"logreg", "mlp-<width>-<width>-...", "lenet5", "vgg11", "vgg19", "resnet18", "resnet20", "vit-base"; of texts "bag", "gru", "transformer"; two classes: "logistic", "sigmoid-erm"',
    )
    norm: Literal["batch", "group"] = Field(
        "batch", description='normalisation in resnet18 and resnet20: "batch" or "group"'
    )
    trainable: Pattern = Field(
        "",
        description="regular expression, found in the names of the network's parameters that are trained and sent; the others stay as they are; empty: all",
    )
    dtype: Literal["float32", "float64"] = Field(
        "float32",
        description='type of models, gradients and what is sent uncompressed: "float32" or "float64"',
    )
    precision: Literal["fp32", "bf16"] = Field(
        "fp32",
        description='precision of matrix products and convolutions in networks: "fp32", or "bf16": models, gradients and what is sent stay float32',
    )
    device: str = Field(
        "cpu",
        description='where training and evaluation compute: "cpu"; "auto": a GPU where there is one, or else the CPU; "cuda", "cuda:<n>", "mps"',
    )
    compile: bool = Field(
        False,
        description="torch.compile the network for training on batches of batch-size; needs a C++ compiler where clients train",
    )
    vectorize: int = Field(
        0,
        ge=0,
        description="small models: this many clients of a node or worker train side by side, their gradients computed at once; 0: one after the other. See docs/engines.md",
    )

    eval_every: int = Field(
        1, ge=1, description="rounds between evaluations; the last round is always evaluated"
    )
    test_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of every client's samples that it does not train on and is evaluated on; 0: none",
    )
    valid_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training samples that nobody trains on and the server evaluates on too: to choose settings on; 0: none",
    )
    metrics: str = Field(
        "",
        description='what is evaluated beside the loss: "accuracy auc f1" of classes, "rmse mae" of numbers; empty: accuracy, or both',
    )
    eval_clients: str = Field(
        "",
        description='clients that evaluate the model on their held-out samples: "all", a number such as "10" or a share such as "0.1"; empty: none',
    )
    eval_finetune: int = Field(
        0,
        ge=0,
        description="with eval-clients: they evaluate it again after this many local SGD steps from it; 0: they do not",
    )
    eval_train: bool = Field(
        False,
        description="evaluate on all clients' training samples too: the metric `objective`",
    )
    target_accuracy: float = Field(
        0.0,
        ge=0,
        le=1,
        description="stop when the test accuracy, or without a test set the clients' mean accuracy, reaches it; 0: run all rounds",
    )
    results_dir: str = Field(
        "",
        description="empty: fedapp-results in the home directory; a relative path is in the home directory too",
    )
    run_name: str = Field(
        "",
        description="directory of this run's results; empty: made from algorithm, data set and time",
    )
    tracker: str = Field(
        "",
        description='where to log config, metrics, model and report too: "wandb", "mlflow", "tensorboard", or several separated by spaces; each needs the extra of its name',
    )
    tensorboard: bool = Field(False, description='the same as tracker = "tensorboard"')
    state_dir: str = Field(
        "",
        description="directory for what clients remember between rounds; empty: kept with the node",
    )
    on_lost_state: Literal["go-on", "reset"] = Field(
        "go-on",
        description='a client no longer has what it remembered: "go-on": that client restarts without it, or "reset": all states restart, from the same model',
    )
    checkpoint_every: int = Field(
        0, ge=0, description="rounds between checkpoints of the server's state; 0: no checkpoints"
    )
    resume: bool | str = Field(
        False,
        description="true: continue from the last checkpoint of run-name, if there is one; or the full path of a run's directory",
    )
    min_clients: int = Field(
        1, ge=1, description="a round with fewer updates than this is repeated with a fresh cohort"
    )
    round_retries: int = Field(
        3, ge=0, description="how often a round is repeated before the run gives up"
    )
    round_timeout: float = Field(
        3600.0, ge=0, description="seconds to wait for a round's answers; 0: no limit"
    )
    node_timeout: float = Field(
        600.0,
        ge=0,
        description="seconds to wait for nodes to connect or come back, while those there host fewer than min-clients; 0: no limit",
    )
    require_all_clients: Literal["auto", "yes", "no"] = Field(
        "auto",
        description='a node for every client before round 1: "yes", or the run ends after node-timeout; "no": begin without the others after a minute; "auto": "yes" if a node has its own data',
    )
    node_partitions: str = Field(
        "",
        description='which node hosts which partition, "<node-id>=<partition-id> ..."; other nodes are refused; empty: what nodes claim, as long as no two claim the same clients',
    )

    options: str = Field(
        "",
        description='keys that pyproject.toml does not declare, such as those of your own algorithm: "key=value key=value"',
    )

    optimizer: OptimizerKeys = OptimizerKeys()
    grid: GridKeys = GridKeys()
    time: TimeKeys = TimeKeys()
    dp: DpKeys = DpKeys()
    lora: LoraKeys = LoraKeys()

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take a renamed key's value for the new name; the old one stays, for a hint."""
        for old, new in RENAMED.items():
            name = new.replace("-", "_")
            if not (value := values.get(old) or values.get(old.replace("-", "_"))):
                continue
            present = values.get(new, values.get(name))
            if present not in (None, value, cls.model_fields[name].default):
                raise ValueError(f"{old} is the earlier name of {new}: set only the latter")
            values = {key: given for key, given in values.items() if key != name} | {new: value}
        return values

    @field_validator("error_feedback", mode="before")
    @classmethod
    def _known_rule(cls, rule: object) -> object:
        if not isinstance(rule, bool) and rule != "ef21":
            raise ValueError('should be true, false or "ef21"')
        return rule

    @field_validator("dataset")
    @classmethod
    def _names_data(cls, name: str) -> str:
        if is_outside(name):
            return name
        owner, slash, rest = name.rpartition("/")  # a data set of the hub has an owner
        return f"{cls._plain_name(owner)}{slash}{cls._plain_name(rest)}"

    @field_validator("device")
    @classmethod
    def _is_device(cls, name: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?|mps", name):
            raise ValueError('should be "auto", "cpu", "cuda", "cuda:<n>" or "mps"')
        return name

    @field_validator("uplink_budget")
    @classmethod
    def _is_budget(cls, text: str) -> str:
        if text and not budget_of(text):
            raise ValueError(
                'should be a positive number of B, kB, MB, GB or bits, such as "50 kB" or "2 bits"'
            )
        return text

    @field_validator("run_name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError("should be made of letters, digits, '.', '_' and '-' only")
        if name and not is_file_name(name):
            raise ValueError(
                "should be a name that every system takes: no '.' at its end, and no device such as CON, NUL or COM1"
            )
        return name

    @field_validator("tracker")
    @classmethod
    def _are_trackers(cls, names: str) -> str:
        if not set(names.split()) <= TRACKERS.keys():
            raise ValueError(f"should be made of {', '.join(TRACKERS)}, separated by spaces")
        return names

    @field_validator("node_partitions")
    @classmethod
    def _are_partitions(cls, text: str) -> str:
        places = set(_partitions(text).values())
        if places != set(range(len(places))):
            raise ValueError("should name a node for each partition from 0 to the largest")
        return text

    @field_validator("eval_clients", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        return str(value) if type(value) in (int, float) else value

    @field_validator("eval_clients")
    @classmethod
    def _counts_clients(cls, text: str) -> str:
        if text in ("", "all") or re.fullmatch(r"[1-9]\d{0,8}", text):
            return text
        if re.fullmatch(r"\d?\.\d{1,9}", text) and 0 < float(text) <= 1:
            return text
        raise ValueError(
            'should be "all", a number of clients such as "10", or a share of them such as "0.1"'
        )

    @field_validator("data_dir", "state_dir", "resume")
    @classmethod
    def _isfull_path(cls, path: str | bool) -> str | bool:
        return full_path(path)

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
        if self.eval_clients.isdigit() and int(self.eval_clients) > self.num_clients:
            raise ValueError(
                f"eval-clients = {self.eval_clients} is more than there are clients: set it to at most "
                f"num-clients = {self.num_clients}"
            )
        if self.eval_finetune and not self.eval_clients:
            raise ValueError('eval-finetune needs clients that evaluate: set eval-clients = "all"')
        if self.dtype == "float64" and (self.precision == "bf16" or self.device == "mps"):
            key, plain = ("precision", "fp32") if self.precision == "bf16" else ("device", "cpu")
            raise ValueError(
                f'{key} = "{getattr(self, key)}" goes with float32 only: set dtype = "float32", or {key} = "{plain}"'
            )
        if self.compile and not self.batch_size:
            raise ValueError(
                "compile = true compiles the network for one size of batches: set batch-size, or compile = false"
            )
        if self.facts and self.server_data:
            raise ValueError("facts stand in for the server's data: set server-data = false")
        if self.eval_train and not self.server_data:
            raise ValueError(
                "eval-train evaluates on the server, which has no data: set eval-train = false"
            )
        if self.valid_share and not self.server_data:
            raise ValueError(
                "valid-share holds out samples on the server, which has no data: set valid-share = 0"
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

    def table(self, kind: type[T]) -> T:
        """Return the table of a kind: an algorithm's options, a compressor's settings, a problem's keys."""
        fields = type(self).model_fields
        values = (getattr(self, name) for name in fields)
        return next((value for value in values if type(value) is kind), kind())

    @property
    def partition_of(self) -> dict[int, int]:
        """The partition of each node that `node-partitions` names; empty if it names none."""
        return _partitions(self.node_partitions)

    @property
    def trackers(self) -> list[str]:
        """The names of the trackers of experiments, each once."""
        older = ["tensorboard"] if self.tensorboard else []
        return list(dict.fromkeys(self.tracker.split() + older))

    @property
    def local_work(self) -> LocalWork:
        """What a client does in a round."""
        return LocalWork(self.local_steps, self.local_epochs, self.batch_size)

    @property
    def eval_cohort(self) -> int:
        """How many clients evaluate."""
        text = self.eval_clients
        if not text or text == "all":
            return self.num_clients if text else 0
        return int(text) if text.isdigit() else max(round(float(text) * self.num_clients), 1)

    def evaluates_in(self, round_: int) -> bool:
        """Return whether the model is evaluated after a round: every few rounds, and after the last."""
        return round_ % self.eval_every == 0 or round_ == self.num_rounds

    def lr_at(self, round_: int) -> float:
        """Return the local step size of a round (the first is 1)."""
        k, tau = round_ - 1, self.local_steps
        factors: dict[str, float] = {
            "constant": 1.0,
            "exponential": self.lr_decay**k,
            "inverse": 1 / (k * tau + 1),  # FedPAQ, theorem 1: lr = 4/mu
            "inverse-sqrt": (self.num_rounds * tau) ** -0.5,  # FedPAQ, theorem 2: lr = 1/L
        }
        warmth = min(1.0, round_ / (self.warmup_rounds + 1))
        return self.lr * factors[self.lr_schedule] * warmth

    @property
    def largest_lr(self) -> float:
        """The largest local step size of all rounds: no schedule grows after the warm-up."""
        last = min(self.warmup_rounds + 1, self.num_rounds)
        return max(self.lr_at(round_) for round_ in range(1, last + 1))

    @property
    def keeps_optimizer(self) -> bool:
        """Whether each client keeps the state of its optimizer from round to round."""
        return self.client_optimizer != "sgd" and self.optimizer.state == "keep"

    def flat(self) -> dict[str, Value]:
        """Return the config as Flower writes it: one level, kebab-case, dotted tables."""
        values: dict[str, Value] = {}
        for name, value in self.model_dump(by_alias=True).items():
            if isinstance(value, dict):  # a table
                values |= {f"{name}.{key}": own for key, own in value.items()}
            else:
                values[name] = value
        return with_new_names(values)
