# Generated from chapters/workshop/commands.py (edit there); digest 17bfea1ebf9f19ce
"""What the command line offers: a table of algorithms, and which command does what."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

__all__ = ["OFFERED", "Offer"]


class Offer(NamedTuple):
    """What an algorithm is for.

    Attributes:
        purpose: In a few words.
        actions: The kinds of actions that it takes.
        chapter: Which chapter tells of it.
    """

    purpose: str
    actions: str
    chapter: str


ANY, LISTED = "all kinds", "Discrete"
BOUNDED = "Discrete, Box"
OFFERED = {
    "ppo": Offer("where to start: steady, few settings", ANY, "ppo"),
    "ppg": Offer("PPO with phases for its values", ANY, "ppg"),
    "impala": Offer("many actors that do not wait", ANY, "impala"),
    "a2c": Offer("PPO without its clip, small", ANY, "a2c"),
    "a3c": Offer("A2C with workers that send gradients", ANY, "a3c"),
    "dqn": Offer("a value for each action, from memory", LISTED, "dqn"),
    "dqnper": Offer("DQN, errors are replayed more often", LISTED, "replay"),
    "rainbow": Offer("DQN with all of its improvements", LISTED, "rainbow"),
    "ddpg": Offer("an actor that climbs its critic", BOUNDED, "ddpg"),
    "ddpgper": Offer("DDPG, errors are replayed more often", BOUNDED, "replay"),
    "hddpg": Offer("DDPG that learns less from bad news", BOUNDED, "td3"),
    "td3": Offer("DDPG with doubts about its critics", BOUNDED, "td3"),
    "sac": Offer("continuous control in few steps", BOUNDED, "sac"),
    "dqnapex": Offer("DQN with many actors", LISTED, "apex"),
    "rainbowapex": Offer("Rainbow with many actors", LISTED, "apex"),
    "ddpgapex": Offer("DDPG with many actors", BOUNDED, "apex"),
}


OTHERS: dict[str, tuple[str, str]] = {
    "show": ("literate_rl.apps.trained", "let an agent play that is trained"),
    "look": ("literate_rl.apps.doctor", "name the symptoms that a run shows"),
    "copy": ("literate_rl.apps.programs", "print an algorithm on one page"),
}
TRAIN = "literate_rl.apps.cli"


def overview() -> str:
    """Return what ``literate-rl --help`` prints."""
    rows = [("command", *(name for name in Offer._fields)), *offered_rows()]
    lines = [f"  {a:12s} {b:37s} {c:14s} {d}".rstrip() for a, b, c, d in rows]
    others = [f"  {name:12s} {words}" for name, (_, words) in OTHERS.items()]
    return "\n".join(
        [
            "usage: literate-rl COMMAND [options]",
            "",
            "Train an agent, and keep the run in a directory below runs/.",
            "",
            *lines,
            *([""] if others else []),
            *others,
            "",
            "All kinds of actions are Discrete, Box, several choices at once, and",
            "hybrid ones: a type with arguments. `literate-rl apex --algorithm dqn`",
            "is dqnapex. Which agent for my task? The page docs/which_agent asks three",
            "questions.",
            "",
            "literate-rl COMMAND --help explains each setting. Four examples:",
            "",
            "  literate-rl show pendulum-sac",
            "  literate-rl ppo --env CartPole-v1 --watch",
            "  literate-rl sac --env Pendulum-v1 --total-steps 20000 --name first",
            "  literate-rl copy ppo > my_ppo.py",
        ]
    )


def offered_rows() -> list[tuple[str, ...]]:
    """Return a row for each algorithm."""
    return [(name, *offer) for name, offer in OFFERED.items()]


def main(arguments: list[str] | None = None) -> None:
    """Carry out a command, or say which ones there are."""
    name, *options = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(overview())
    elif name in OTHERS:
        import_module(OTHERS[name][0]).main(options)
    elif name in OFFERED or name == "apex":
        import_module(TRAIN).main([name, *options])
    else:
        close = get_close_matches(name.lower(), [*OFFERED, *OTHERS, "apex"], n=1)
        hint = f"is it {close[0]}? " if close else ""
        words = f"error: there is no command {name!r}: {hint}literate-rl --help"
        print(f"{words} lists all", file=sys.stderr)
        sys.exit(2)
