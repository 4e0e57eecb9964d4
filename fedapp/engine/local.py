"""What our grids share: the identity of a run that no SuperLink knows of."""

from collections.abc import Mapping
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedapp.state import DirectoryStore

RUN_ID = 1
CLIENT_APP_FAILED = 2  # Flower's code for an exception in the ClientApp


class LocalGrid(Grid):
    """The part of Flower's `Grid` interface that has nothing to do with carrying messages."""

    shares_disk = True  # the nodes are on this machine
    # Nodes may answer with sums; a grid that looks into answers finds updates there.
    adds_up = False

    def __init_subclass__(cls, **keys: Any) -> None:
        """Let no grid inherit that: it may look into answers where its base does not."""
        super().__init_subclass__(**keys)
        if "adds_up" not in vars(cls):
            cls.adds_up = False

    def __init__(self) -> None:
        self.set_run(Run.create_empty(run_id=RUN_ID))

    def set_run(self, run: Run) -> None:
        """Take on a run's identity, which Flower's messages carry."""
        self._run = run
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run.run_id, 0, 1

    @property
    def run(self) -> Run:
        """Return the run."""
        return self._run

    def save_states(self, store: DirectoryStore, tags: Mapping[int, int]) -> bool:
        """Write clients' states that are in memory, client -> tag, to a disk; return whether this grid can."""
        return False

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
