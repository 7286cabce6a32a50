# Generated from chapters/apps/commands.py (edit there); digest ceeaba13be397b91
"""What the command line offers: a table of algorithms, and which command does what."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

__all__ = ["OFFERED", "Offer"]


class Offer(NamedTuple):
    """What an algorithm is for, as its row says.

    Attributes:
        purpose: In a few words.
        actions: The kinds of actions that it takes.
        chapter: Which chapter tells of it.
    """

    purpose: str
    actions: str
    chapter: str


TABLE = """
ppo         | where to start: steady, few settings | all kinds     | ppo
ppg         | PPO with phases for its values       | all kinds     | ppg
impala      | many actors that do not wait         | all kinds     | impala
a2c         | PPO without its clip, small          | all kinds     | a2c
a3c         | A2C with workers that send gradients | all kinds     | a3c
dqn         | a value for each action, from memory | Discrete      | dqn
dqnper      | DQN, errors are replayed more often  | Discrete      | replay
rainbow     | DQN with all of its improvements     | Discrete      | rainbow
ddpg        | an actor that climbs its critic      | Discrete, Box | ddpg
ddpgper     | DDPG, errors are replayed more often | Discrete, Box | replay
hddpg       | DDPG that learns less from bad news  | Discrete, Box | td3
td3         | DDPG with doubts about its critics   | Discrete, Box | td3
sac         | continuous control in few steps      | Discrete, Box | sac
dqnapex     | DQN with many actors                 | Discrete      | apex
rainbowapex | Rainbow with many actors             | Discrete      | apex
ddpgapex    | DDPG with many actors                | Discrete, Box | apex
"""
LINES = ([x.strip() for x in line.split("|")] for line in TABLE.split("\n") if line)
OFFERED = {name: Offer(*row) for name, *row in LINES}


OTHERS: dict[str, tuple[str, str]] = {
    "show": ("trained:play", "let an agent play that is trained"),
    "look": ("doctor:look", "name the symptoms that a run shows"),
    "copy": ("programs:copied", "print an algorithm on one page"),
}


HELP = """usage: literate-rl COMMAND [options]

Train an agent, and keep the run in a directory below runs/.

{rows}

{others}

All kinds of actions are Discrete, Box, several choices at once, and
hybrid ones: a type with arguments. `literate-rl apex --algorithm dqn`
is dqnapex, and mine.py:name or module:name is an algorithm of your own.
Which agent for my task? The page docs/which_agent asks three questions.

literate-rl COMMAND --help explains each setting. Four examples:

  literate-rl show pendulum-sac
  literate-rl ppo --env CartPole-v1 --watch
  literate-rl sac --env Pendulum-v1 --total-steps 20000 --name first
  literate-rl copy ppo > my_ppo.py"""


def overview() -> str:
    """Return what ``literate-rl --help`` prints."""
    rows = [("command", *Offer._fields), *((x, *offer) for x, offer in OFFERED.items())]
    lines = [f"  {a:12s} {b:37s} {c:14s} {d}".rstrip() for a, b, c, d in rows]
    others = [f"  {name:12s} {words}" for name, (_, words) in OTHERS.items()]
    return HELP.format(rows="\n".join(lines), others="\n".join(others))


def trained(name: str, options: list[str]) -> None:
    """Train with an algorithm."""
    import_module("literate_rl.apps.cli").main([name, *options])


def told(name: str, options: list[str]) -> None:
    """Call the function of another command, and print what it returns."""
    import tyro

    module, _, function = OTHERS[name][0].partition(":")
    called = getattr(import_module(f"literate_rl.apps.{module}"), function)
    called = tyro.conf.configure(tyro.conf.PositionalRequiredArgs)(called)
    if text := tyro.cli(called, prog=f"literate-rl {name}", args=options):
        print(text.rstrip())


def main(arguments: list[str] | None = None) -> None:
    """Carry out a command, or say which ones there are."""
    name, *options = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(overview())
        return
    if name in OTHERS:
        carry_out = told
    elif name in OFFERED or name == "apex" or ":" in name or name.endswith(".py"):
        carry_out = trained
    else:
        close = get_close_matches(name.lower(), [*OFFERED, *OTHERS, "apex"], n=1)
        hint = f"is it {close[0]}? " if close else ""
        words = f"error: there is no command {name!r}: {hint}literate-rl --help"
        print(f"{words} lists all", file=sys.stderr)
        sys.exit(2)
    try:
        carry_out(name, options)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a simulator's panic is no Exception
        if sys.flags.dev_mode:
            raise
        from literate_rl.data.held import in_one_line  # it imports PyTorch

        sys.exit(f"error: {in_one_line(error)}")
