"""Differential privacy of whole clients: clipping, Gaussian noise, and what was spent.

Two runs are neighbours if they differ in one client, replaced by any other: all its data, or that it fails. So the
sum of a round's updates, each no longer than `clip`, moves by at most 2 clip, and so does the one
update that a client sends. `dp.noise-multiplier` z is the noise on that over clip, as in Flower; the accountant counts
noise over what can move, which is z/2.

server: the sum is divided by clients-per-round s, however many answer, so that an absent client is
  an update of 0; the noise on this mean has the standard deviation z clip/s. Every round's s clients are drawn from
  all N, also from those that no node hosts now.
client: noise of z clip on each update before it is sent. The server knows who sent it, so there is no
  gain from sampling: what counts is how often a client has sent.

What each module decides: `server`, whom to draw, the noise on the mean, what may be told, and what the run has spent;
`node`, what leaves a node beside the update; `budget`, what a node lets its clients release, whatever a run asks for;
`accounting`, what releases cost.
"""

from fedapp.privacy.node import NodePrivacy, node_privacy
from fedapp.privacy.server import CountedPrivacy, Privacy, ServerNoise, server_privacy

__all__ = [
    "CountedPrivacy",
    "NodePrivacy",
    "Privacy",
    "ServerNoise",
    "node_privacy",
    "server_privacy",
]
