"""Trackers of experiments, as observers of a run: Weights & Biases, MLflow, TensorBoard.

`tracker.py` says what a tracker must do; there is a module for each. `log.py` starts the trackers that a config names
and calls them. Nothing in a run depends on them.
"""

TRACKERS = {  # name in the config -> its class
    "wandb": "fedapp.trackers.wandb:WandbTracker",
    "mlflow": "fedapp.trackers.mlflow:MlflowTracker",
    "tensorboard": "fedapp.trackers.tensorboard:TensorBoardTracker",
}
