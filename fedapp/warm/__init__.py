"""A process on a node that stays between messages, so that torch and the data are loaded once for a run.

`front` is what Flower's process does: it finds the worker, or starts it, and hands the message over. `worker` serves
messages, one after the other. `channel` is what goes between the two, and the checks that it stays between them.

A worker belongs to one SuperExec, which ends with its SuperNode, to one run, one node, one copy of the app and one
environment. It ends with its SuperExec, when the process that asked ends without waiting for the answer, and when
nobody has asked for a while. Whatever goes wrong with it, the message is served without it, and gives the same bits.
"""
