"""A stand-in for a SuperExec: starts a process for each message, named as Flower's is. `python -m tests.warm.owner PLACE`.

Every line of its input is the number of a message: PLACE holds `<number>.message` and `<number>.context`, and the process
leaves `<number>.reply`, `<number>.state` and `<number>.json`, which says what it had imported, or what it raised.
"""

import json
import os
import sys
from pathlib import Path

from flwr.common.serde import (
    context_from_proto,
    message_from_proto,
    recorddict_to_proto,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage

from fedapp import client_app


def serve(place: Path, number: str) -> None:
    """Serve a message as Flower's process does."""
    message = message_from_proto(
        ProtoMessage.FromString((place / f"{number}.message").read_bytes())
    )
    context = context_from_proto(
        ProtoContext.FromString((place / f"{number}.context").read_bytes())
    )
    sys.argv = ["/bin/flwr-clientapp", "--token", "x", "--parent-pid", str(os.getppid())]
    told = {"raised": ""}
    try:
        reply = client_app.app(message, context)
        content = recorddict_to_proto(reply.content).SerializeToString(deterministic=True)
        (place / f"{number}.reply").write_bytes(content)
    except Exception as error:
        told["raised"] = f"{type(error).__name__}: {error}"
    state = recorddict_to_proto(context.state).SerializeToString(deterministic=True)
    (place / f"{number}.state").write_bytes(state)
    told["imported"] = "torch" if "torch" in sys.modules else ""
    (place / f"{number}.json").write_text(json.dumps(told))


def main() -> None:
    """Serve what is asked for, until the input ends."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            serve(Path(sys.argv[1]), line.strip())
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        print("served", flush=True)


if __name__ == "__main__":
    main()
