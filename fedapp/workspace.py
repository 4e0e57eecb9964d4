"""What a run keeps on disk while it works: clients' states, and vectors that they still wait for."""

import shutil
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedapp.config import RunConfig
from fedapp.deliveries import UNDELIVERED
from fedapp.engine.local import LocalGrid
from fedapp.files import checkpoint_paths, writable_directory
from fedapp.grids import is_deployed, is_simulated
from fedapp.ledger import Place, accepted_states
from fedapp.manifest import CHECKPOINTS
from fedapp.registry import keeps_state
from fedapp.run_directory import RunDirectory
from fedapp.state import CLIENT_STATE, DirectoryStore
from fedapp.strategy import FederatedStrategy


class Workspace:
    """Where the clients of a run keep their states, and the server what it has not delivered yet.

    Use as a context manager: unless the run may be resumed, what is in the run's directory is removed at the end.
    """

    def __init__(self, grid: Grid, config: RunConfig, directory: RunDirectory) -> None:
        deployed = is_deployed(grid)
        checkpoints = checkpoint_paths(directory.path / CHECKPOINTS)
        self.resumable = bool(config.checkpoint_every or checkpoints)
        self.notes: list[str] = []  # for the user
        self.states: DirectoryStore | None = None  # if the server sees the clients' disk
        self._client_state = directory.path / CLIENT_STATE
        shares_disk = not deployed and getattr(grid, "shares_disk", True)
        state_dir = config.state_dir
        keeps = self._keeps = keeps_state(config)
        if (keeps or config.downlink != "none") and not state_dir:
            if is_simulated(grid) or (keeps and self.resumable and not deployed):
                # Flower's simulation carries a node's Context with every message to it and back; and what
                # is in a process's memory is lost with it.
                state_dir = str(writable_directory("results-dir", self._client_state))
            elif keeps and self.resumable:
                self.notes.append(
                    "Nodes without a state-dir of their own forget what their clients remember when a run resumes."
                )
        if keeps and state_dir and shares_disk:
            self.states = DirectoryStore(Path(state_dir).expanduser() / directory.identity)
        self._undelivered = directory.path / UNDELIVERED
        self.place = Place(directory.identity, state_dir, not shares_disk, self._undelivered)

    def keep(self, grid: Grid, strategy: FederatedStrategy[Any]) -> bool:
        """Keep what is here for a run that is interrupted; write states to disk that were in memory.

        Return whether the run can be resumed.
        """
        if self._keeps and not self.place.state_dir:
            store = DirectoryStore(self._client_state / self.place.identity)
            clients, tags, _ = accepted_states(strategy.saved())
            named = dict(zip(clients.tolist(), tags.tolist(), strict=True))
            if not isinstance(grid, LocalGrid) or not grid.save_states(store, named):
                return False
            self.states = store
        self.resumable = True
        return True

    def __enter__(self) -> "Workspace":
        """Return the workspace."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what only a run under way needs."""
        if not self.resumable:
            shutil.rmtree(self._client_state, ignore_errors=True)
            shutil.rmtree(self._undelivered, ignore_errors=True)
