"""Standings: one table of what each agent of the book reached on each task.

``{standings}`` has a row for an agent and a task: ours, a peer that ran here, what
others publish, and whether the goal was reached. ``{standings} programs`` has those of
the programs on one page. All numbers come from stored files.
"""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from curves import Stored, short, with_interval
from docutils import nodes
from numpy.typing import NDArray
from results import html_table
from sphinx.application import Sphinx

from benchmarks.store import RESULTS, is_stale, read_table

PUBLISHED = RESULTS / "published.csv"
EVERY = -1


class Standing(NamedTuple):
    """A row: an agent and the experiment that trained it.

    Attributes:
        agent: Its name.
        experiment: Name of the stored experiment.
        variant: Which of its variants, or its only one.
        wanted: How many runs have to reach the goal; None asks for their mean.
        peer: Experiment of another library with the same settings.
    """

    agent: str
    experiment: str
    variant: str = ""
    wanted: int | None = None
    peer: str = ""


STANDINGS = (
    Standing("REINFORCE", "reinforce", "minus the value"),
    Standing("A2C", "a2c_cartpole", wanted=EVERY),
    Standing("PPO", "cartpole"),
    Standing("PPG", "ppg_cartpole", "PPG", wanted=EVERY),
    Standing("IMPALA", "impala_cartpole", wanted=4),
    Standing("A3C, two workers", "a3c_cartpole", wanted=8),
    Standing("DQN", "dqn_cartpole", wanted=8),
    Standing("Rainbow", "rainbow_cartpole", wanted=8),
    Standing("discrete SAC", "sac_cartpole", wanted=EVERY),
    Standing("Ape-X, four actors", "apex_waiting", "4 actors"),
    Standing("IMPALA", "impala_force"),
    Standing("PPO", "acrobot"),
    Standing("REINFORCE", "arc_pendulum", "with a baseline"),
    Standing("A2C", "arc_pendulum", "A2C"),
    Standing("PPO", "pendulum"),
    Standing("DDPG", "ddpg_pendulum", "DDPG", wanted=EVERY),
    Standing("HDDPG", "ddpg_pendulum", "HDDPG", wanted=EVERY),
    Standing("TD3", "ddpg_pendulum", "TD3", wanted=EVERY),
    Standing("SAC", "sac_pendulum", wanted=EVERY),
    Standing("DQN", "rainbow_mountaincar", "DQN"),
    Standing(
        "Rainbow's steps and noise", "rainbow_mountaincar", "n = 10, noisy for 20 steps"
    ),
    Standing("SAC", "sac_mountain", wanted=8),
    Standing("PPO", "lander_discrete"),
    Standing("PPO", "lander_continuous"),
    Standing("hybrid PPO", "lander", "joint"),
    Standing("hybrid PPO", "moving", "joint"),
    Standing("hybrid PPO", "platform"),
    Standing("PPO with masks", "masks_taxi", "masks"),
    Standing("PPO with an LSTM", "recurrent_cartpole", "LSTM"),
    Standing("PPO", "ppg_maze", "PPO"),
    Standing("PPG", "ppg_maze", "PPG"),
    Standing("Rainbow", "rainbow_mazes"),
    Standing("PPO", "ppg_starpilot", "PPO"),
    Standing("PPG", "ppg_starpilot", "PPG"),
    Standing("PPO", "minatar_asterix"),
    Standing("PPO", "minatar_breakout", "chosen"),
    Standing("DQN", "minatar_dqn"),
    Standing("Rainbow", "minatar_rainbow"),
    Standing("TD3", "td3_cheetah", peer="td3_cheetah_peer"),
    Standing("SAC", "sac_cheetah", peer="sac_cheetah_peer"),
)
PROGRAMS = tuple(
    Standing(title, f"program_{name}")
    for name, title in {
        "agents": "a random agent",
        "policy_gradient": "REINFORCE",
        "advantages": "REINFORCE with a critic",
        "ppo_error_without_clip": "PPO's loops without its clip",
        "ppo_error": "PPO without its four details",
        "a2c": "A2C",
        "ppo": "PPO",
        "from_nothing": "PPO from nothing",
        "recurrent": "PPO with a memory",
        "ppg": "PPG",
        "impala": "IMPALA",
        "dqn": "DQN",
        "rainbow": "Rainbow",
        "discrete_sac": "discrete SAC",
        "ddpg": "DDPG",
        "td3": "TD3",
        "sac": "SAC",
        "hybrid_ppo": "hybrid PPO",
    }.items()
)


class Standings(Stored):
    """``{standings}``: the table of the agents, or of the programs."""

    required_arguments = 0
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the table."""
        programs = self.arguments == ["programs"]
        self.there(PUBLISHED)
        rows, processors = [], set()
        for standing in PROGRAMS if programs else STANDINGS:
            if (found := self.runs(standing.experiment)) is None:
                continue
            variants, origin = found
            runs = variants[standing.variant] if standing.variant else only(variants)
            peer = self.runs(standing.peer) if standing.peer else None
            theirs = only(peer[0]).final if peer else None
            rows.append((origin["env"], cells(standing, runs, origin, theirs)))
            processors.add(f"{origin['cpu']}, {origin['cores']} cores")
        html = standings_table(rows)
        html += f"<p>Processors: {escape('; '.join(sorted(processors)))}.</p>"
        return [nodes.raw("", html, format="html")]


def only(variants: dict[str, Any]) -> Any:
    """Return the only variant of an experiment."""
    (runs,) = variants.values()
    return runs


def cells(
    standing: Standing,
    runs: Any,
    origin: dict[str, str],
    theirs: NDArray[Any] | None,
) -> dict[str, str]:
    """Return a row, by the heads of the columns."""
    seconds = runs.cpu_seconds.mean()
    return {
        "agent": escape(standing.agent),
        "ours": with_interval(runs.final)
        + (" <small>stale</small>" if is_stale(origin) else ""),
        "goal": verdict(standing, runs.final, origin.get("goal")),
        "peer run here": "" if theirs is None else with_interval(theirs),
        "published": published(standing.agent, origin["env"]),
        "seeds": str(len(runs.final)),
        "steps": f"{runs.steps[-1]:,.0f}",
        "processor time": f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min",
        # It may break at an underscore.
        "to repeat": f"<code>{standing.experiment.replace('_', '_<wbr>')}</code>",
    }


def verdict(standing: Standing, final: NDArray[Any], goal: str | None) -> str:
    """Say what was to be reached, and whether it was."""
    if goal is None:
        return ""
    number, met = len(final), int((final >= float(goal)).sum())
    wanted = number if standing.wanted == EVERY else standing.wanted
    if wanted is None:
        reached, whose = final.mean() >= float(goal), "on average"
    else:
        reached = met >= wanted
        whose = f"in all {number}" if wanted == number else f"in {wanted} runs"
    word = "reached" if reached else "<strong>missed</strong>"
    return f"{word} <small>{goal} {whose}; {met} did</small>"


def published(agent: str, env: str) -> str:
    """Return what others publish of the same agent, with a link to their line."""
    rows, origin = read_table(PUBLISHED)
    for row in rows:
        if (row["agent"], row["env"]) == (agent.lower(), env):
            version = row["env_there"].rpartition("-")[2]
            there = "" if row["env_there"] == env else f", {version}"
            value = f"RL Zoo{there}: {short(float(row['return']))}"
            place = f"{origin['source']}?plain=1#L{row['line']}"
            steps = f"{int(row['steps']):,} steps"
            return f'<a href="{place}">{value}</a> <small>{steps}</small>'
    return ""


def standings_table(rows: list[tuple[str, dict[str, str]]]) -> str:
    """Return the rows as a table, task by task, without columns that nobody fills."""
    heads = [head for head in rows[0][1] if any(row[head] for _, row in rows)]
    body, task = "", None
    for env, row in rows:
        if env != task:
            task = env
            name = escape(env.rpartition("/")[2])
            body += f'<tr><th colspan="{len(heads)}" scope="rowgroup">{name}</th></tr>'
        body += f'<tr><th scope="row">{row["agent"]}</th>'
        body += "".join(f"<td>{row[head]}</td>" for head in heads[1:]) + "</tr>"
    return f'<div class="standings">{html_table(tuple(heads), body)}</div>'


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_directive("standings", Standings)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
