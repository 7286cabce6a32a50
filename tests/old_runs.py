"""Models of one's own, as small as they can be, of runs that an old version wrote.

Who has trained for a week may load, watch and resume that run with any later version.
The runs of ``tests/runs`` are from commit 4cb5828, written by its own code; how is told
by this file as it was then:

    git worktree add --detach ../old 4cb5828
    git show cc980fc6:tests/old_runs.py > old_runs.py
    PYTHONPATH=../old/src python old_runs.py

A directory is as ``kill -9`` leaves it: its checkpoint is the last but one, its table
goes on behind it. TensorBoard's events are left out: they are written, never read.
``answers.json`` has what the policies of that commit, loaded by it, said about two
observations. Nothing of this is written anew: what has another version's form comes
beside it. The names of these models stand in ``settings.json``.
"""

from __future__ import annotations

from torch import nn

from literate_rl.book.contract_models import (
    ActionValue,
    CategoricalActor,
    DeterministicActor,
    QNetwork,
    SquashedGaussianActor,
    StateValue,
)


class Values(QNetwork):
    def __init__(self) -> None:
        super().__init__(4, 2)
        self.net = nn.Linear(4, 2)


class Chooser(CategoricalActor):
    def __init__(self) -> None:
        super().__init__(4, 2)
        self.net = nn.Linear(4, 2)


class Judge(StateValue):
    def __init__(self) -> None:
        super().__init__(4)
        self.net = nn.Linear(4, 1)


class Pusher(DeterministicActor):
    def __init__(self) -> None:
        super().__init__(3, [-2.0], [2.0])
        self.net = nn.Linear(3, 1)


class Drawer(SquashedGaussianActor):
    def __init__(self) -> None:
        super().__init__(3, [-2.0], [2.0])
        self.net = nn.Linear(3, 2)


class ActionJudge(ActionValue):
    def __init__(self) -> None:
        super().__init__(3, 1)
        self.net = nn.Linear(4, 1)
