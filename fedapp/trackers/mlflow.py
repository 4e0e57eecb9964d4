"""MLflow: config, figures, model and report of a run.

MLflow's own variables apply: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME. Without the first, everything is in
`mlflow.db` and `mlflow-artifacts/` beside the runs: in the results directory.
"""

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapp.trackers.tracker import TrackedRun, Tracker, missing

EXPERIMENT = "fedapp"  # unless MLFLOW_EXPERIMENT_NAME names another
MOST = 100  # params in one request of MLflow's


class MlflowTracker(Tracker):
    """One MLflow run; a run that resumes continues it."""

    name, title = "mlflow", "MLflow"

    def __init__(self) -> None:
        try:
            import mlflow
            import mlflow.entities
        except ImportError:
            raise missing(self.name, "mlflow") from None
        self._mlflow = mlflow
        self._client: Any = None
        self._id = self._place = ""

    def start(self, run: TrackedRun) -> str:
        """Create a run, or open it again; our own client leaves MLflow's global state alone."""
        results = run.directory.parent
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{results / 'mlflow.db'}"
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of tables
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        if run.known_as:
            self._id = run.known_as
            self._client.update_run(self._id, status="RUNNING")
        else:
            experiment = self._experiment(results, uri)
            self._id = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        self._place = f"run {self._id} in {uri}"
        self._log_config(run.config)
        return self._id

    def _experiment(self, results: Path, uri: str) -> str:
        """Return the id of the experiment, which is created if need be."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        own = uri.startswith("sqlite:") and "MLFLOW_TRACKING_URI" not in os.environ
        artifacts = (results / "mlflow-artifacts").as_uri() if own else None
        if not (found := self._client.get_experiment_by_name(name)):
            try:
                return str(self._client.create_experiment(name, artifact_location=artifacts))
            except self._mlflow.MlflowException:  # another process was faster
                found = self._client.get_experiment_by_name(name)
                if not found:
                    raise
        return str(found.experiment_id)

    def _log_config(self, config: Mapping[str, object]) -> None:
        """Log the config as params; those of a resumed run that differ (such as num-rounds) keep their first value."""
        known = self._client.get_run(self._id).data.params
        param = self._mlflow.entities.Param
        new = [param(key, str(value)) for key, value in config.items() if key not in known]
        for first in range(0, len(new), MOST):
            self._client.log_batch(self._id, params=new[first : first + MOST])

    def last_round(self) -> int:
        """Return the last round that MLflow holds."""
        history = self._client.get_metric_history(self._id, "round/clients")
        return max((int(metric.step) for metric in history), default=0)

    def place(self) -> str:
        """Return the id of the run, and where it is."""
        return self._place

    def log(self, round_: int, figures: Mapping[str, float]) -> None:
        """Log a round as a step, in one request."""
        now = int(time.time() * 1000)
        metric = self._mlflow.entities.Metric
        metrics = [metric(name, value, now, round_) for name, value in figures.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, files: Mapping[str, Path], complete: bool) -> None:
        """Save the files as artifacts, each in a directory named after what it is, and end the run."""
        for kind, path in files.items():
            self._client.log_artifact(self._id, str(path), artifact_path=kind)
        self._client.set_terminated(self._id, "FINISHED" if complete else "FAILED")
