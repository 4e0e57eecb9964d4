"""Metrics on a test set: of classes accuracy, AUC and F1, and of numbers RMSE and MAE, by scikit-learn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedapp.problems.keys import chosen_metrics


class ClassMeasures:
    """The loss and the metrics that the config asks for, of outputs (n, ..., classes) and targets (n, ...)."""

    def __init__(self, metrics: str) -> None:
        self.names = chosen_metrics(metrics, of_classes=True)
        self._by_sample = "auc" in self.names or "f1" in self.names

    def of_batch(self, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Return sums over a batch, and what AUC and F1 need of it."""
        each = targets[0].numel()  # targets of a sample
        outputs, targets = outputs.flatten(0, -2), targets.flatten()
        loss = F.cross_entropy(outputs, targets, reduction="sum").item()
        correct = int((outputs.argmax(1) == targets).sum())
        found: dict[str, Any] = {
            "loss": loss if each == 1 else loss / each,
            "accuracy": correct if each == 1 else correct / each,
        }
        if self._by_sample:
            found["targets"] = targets.cpu().numpy()
        if "auc" in self.names:
            found["scores"] = outputs.cpu().double().softmax(1).numpy()
        if "f1" in self.names:
            found["chosen"] = outputs.argmax(1).cpu().numpy()
        return found

    def combined(self, parts: Sequence[dict[str, Any]], count: int) -> dict[str, float]:
        """Return the metrics of all batches, in the order of the config; without an AUC that is not defined."""
        found = {"loss": sum(part["loss"] for part in parts) / count}
        targets = _joined(parts, "targets") if self._by_sample else np.zeros(0)
        for name in self.names:
            if name == "accuracy":
                found[name] = sum(part[name] for part in parts) / count
            elif name == "auc":
                area = auc(targets, _joined(parts, "scores"))
                if area is not None:
                    found[name] = area
            else:
                found[name] = f1(targets, _joined(parts, "chosen"))
        return found


class NumberMeasures:
    """The loss and the metrics that the config asks for, of targets that are numbers; those in the target's unit."""

    def __init__(self, metrics: str, target_std: float) -> None:
        self.names = chosen_metrics(metrics, of_classes=False)
        self.target_std = target_std

    def of_batch(self, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Return a batch's squared error and its errors."""
        errors = (outputs.cpu().double() - targets.cpu().double()).numpy()
        return {"loss": float(np.square(errors).sum()), "errors": errors}

    def combined(self, parts: Sequence[dict[str, Any]], count: int) -> dict[str, float]:
        """Return the metrics of all batches, in the order of the config."""
        from sklearn.metrics import mean_absolute_error, root_mean_squared_error

        found = {"loss": sum(part["loss"] for part in parts) / count}
        errors = _joined(parts, "errors") * self.target_std
        measures = {"rmse": root_mean_squared_error, "mae": mean_absolute_error}
        return found | {
            name: float(measures[name](np.zeros_like(errors), errors)) for name in self.names
        }


def _joined(parts: Sequence[dict[str, Any]], name: str) -> NDArray[Any]:
    return np.concatenate([part[name] for part in parts])


def auc(targets: NDArray[Any], scores: NDArray[Any]) -> float | None:
    """Return the area under the ROC curve: of class 1 if there are two, otherwise the mean of each class against the rest.

    Classes that no target or every target has are left out; if that leaves none, nothing can be ranked: None.
    """
    from sklearn.metrics import roc_auc_score

    classes = [1] if scores.shape[1] == 2 else range(scores.shape[1])
    ranked = [k for k in classes if 0 < np.count_nonzero(targets == k) < len(targets)]
    areas = [roc_auc_score(targets == k, scores[:, k]) for k in ranked]
    return float(np.mean(areas)) if areas else None


def f1(targets: NDArray[Any], chosen: NDArray[Any]) -> float:
    """Return the mean F1 of the classes that are there or were chosen."""
    from sklearn.metrics import f1_score

    return float(f1_score(targets, chosen, average="macro", zero_division=0.0))
