"""What the page of results says about stored runs that no chapter asserts: numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standings import PROGRAMS, STANDINGS, Standing, only, published, verdict

from benchmarks.__main__ import GPU_NAMES, NAMES, PEER_NAMES, learning_commands
from benchmarks.store import RESULTS, read_results, read_table
from literate_rl.runs.evaluation import paired_difference, t_interval
from literate_rl.runs.runs import stored_runs

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/results.md").read_text("utf-8")


def each_row(table: str) -> pytest.MarkDecorator:
    """Run a test with each row of a table: text, with bars between its cells."""
    rows = [re.split(r" *\| *", row.strip()) for row in table.strip().splitlines()]
    return pytest.mark.parametrize("row", rows, ids=" ".join)


def runs_of(name: str) -> Any:
    """Return the runs of ``experiment, variant``."""
    experiment, variant = name.split(", ", 1)
    return stored_runs(experiment)[variant]


# --- The page and what it shows -------------------------------------------------------


def test_each_stored_run_and_measurement_has_its_place_and_is_made_again():
    """But for runs that a chapter draws."""
    speed = re.findall(r"```\{benchmark\} (.*)", PAGE)
    assert sorted(speed) == sorted(NAMES + PEER_NAMES + GPU_NAMES)
    shown = {*" ".join(re.findall(r"```\{(?:learning|ablation)\} (.*)", PAGE)).split()}
    rows = {row.experiment for row in (*STANDINGS, *PROGRAMS)}
    assert learning_commands().keys() >= shown | rows, "each can be repeated"
    assert learning_commands().keys() - shown - rows == {
        *("encoders_breakout", "masks_taxi_without", "ppg_maze_tuning", "dqn_memory"),
        *("impala_lag_5", "impala_updates_1", "impala_updates_4"),
        *("moving_idle_2", "moving_idle_4", "moving_idle_cause"),
    }


def final_of(row: Standing) -> np.ndarray:
    """Return what the runs of a row of the first table ended with."""
    variants = stored_runs(row.experiment)
    return (variants[row.variant] if row.variant else only(variants)).final


def test_the_first_table_says_which_goals_are_missed():
    told = []
    for row in STANDINGS:
        origin = read_table(RESULTS / f"learning/{row.experiment}.csv")[1]
        if "goal" in origin:
            told.append(f"{verdict(row, final_of(row), origin['goal'])} {row[:2]}")
    missed = re.findall("missed.*'(.*?)', '(.*?)'", "\n".join(told))
    assert (len(told), missed) == (
        21,
        [
            ("DQN", "dqn_cartpole"),
            ("PPO", "acrobot"),
            ("DDPG", "ddpg_pendulum"),
            ("PPO", "lander_continuous"),
        ],
    )


@each_row("""
     | 2   | reached <small>2 on average; 2 did</small>
     | 3.1 | <strong>missed</strong> <small>3.1 on average; 1 did</small>
   2 | 1.5 | reached <small>1.5 in 2 runs; 2 did</small>
   3 | 2   | <strong>missed</strong> <small>2 in all 3; 2 did</small>
   1 |     |
""")
def test_a_goal_asks_for_runs_or_for_their_mean(row):
    wanted, goal, said = row
    standing = Standing("PPO", "x", wanted=int(wanted) if wanted else None)
    assert verdict(standing, np.array([1.0, 2.0, 6.0]), goal or None) == said


# --- Where runs end -------------------------------------------------------------------


# What was to be reached, and in how many of how many runs it was.
@each_row("""
reinforce, minus the value | 499 | 17 | 20
reinforce, no baseline | 500 | 7 | 20
a2c, A2C | 240 | 15 | 20
a2c, A2C | 491 | 10 | 20
rainbow_cartpole, Rainbow | 475 | 10 | 10
rainbow_parts, without n steps | 500 | 3 | 3
ddpg_pendulum, DDPG | -200 | 9 | 10
ddpg_pendulum, HDDPG | -200 | 10 | 10
ddpg_pendulum, TD3 | -200 | 10 | 10
ddpg_batches, DDPG | -200 | 10 | 10
ddpg_batches, HDDPG | -200 | 9 | 10
ddpg_batches, TD3 | -200 | 10 | 10
sac_batches, SAC, batches of 256 | -200 | 9 | 10
sac_pendulum, SAC | -200 | 10 | 10
td3_switches, without delay | -200 | 5 | 5
td3_switches, without smoothing | -200 | 5 | 5
ddpg_corner, DDPG | 100 | 9 | 10
sac_mountain, SAC | 91 | 10 | 10
sac_mountain_parts, noise of one step | 0.001 | 0 | 10
sac_mountain_parts, targets of one step | 91 | 9 | 10
sac_cartpole, SAC | 500 | 8 | 10
sac_cartpole_random, SAC | 480 | 10 | 10
sac_cartpole_sure, SAC | 320 | 9 | 10
sac_cartpole_sure, SAC | 460 | 9 | 10
sac_cartpole_cool, SAC | 320 | 8 | 10
sac_cartpole_hoard, SAC | 195 | 9 | 10
lander, joint | 200 | 3 | 5
lander_continuous, PPO | 200 | 2 | 5
sac_cheetah, SAC | 1500 | 5 | 5
minatar_asterix, PPO | 6 | 5 | 5
""")
def test_so_many_runs_reach_what_the_page_says(row):
    name, goal, *told = row
    final = runs_of(name).final
    found = (final >= float(goal)).sum(), len(final)
    assert [*map(str, found)] == told


# Whether the first agent has more or less than the second, seed by seed. An interval of
# the mean difference on both sides of 0 shows neither.
@each_row("""
ppg_maze_shared, PPG | ppg_maze, PPG | area | less
ppg_maze, PPG | ppg_maze, PPO | area | either
ppg_maze, PPG | ppg_maze, PPO | final | either
ppg_maze, PPG | ppg_maze, PPO | training | either
ppg_maze, PPG | ppg_maze, PPO | unseen | either
ppg_maze_once, PPG | ppg_maze_once, PPO | area | either
ppg_maze_once, PPG | ppg_maze_once, PPO | final | either
ppg_maze_once, PPG | ppg_maze_once, PPO | training | either
ppg_maze_once, PPG | ppg_maze_once, PPO | unseen | either
ppg_maze_ablation, 16 phases | ppg_maze, PPG | area | less
ppg_maze_ablation, clone weight 0 | ppg_maze, PPG | area | either
ppg_maze_ablation, clone weight 10 | ppg_maze, PPG | area | either
td3_switches, without delay | ddpg_pendulum, TD3 | area | more
sac_mountain_parts, targets of one step | sac_mountain, SAC | area | more
sac_cartpole_sure, SAC | sac_cartpole_hoard, SAC | final | either
sac_cartpole_cool, SAC | sac_cartpole_sure, SAC | final | either
sac_cartpole_random, SAC | sac_cartpole, SAC | area | less
apex_ratio, actor | apex_ratio, largest | area | either
minatar_breakout, chosen | minatar_breakout, by hand | curves | either
""")
def test_two_agents_differ_as_the_page_says(row):
    *names, what, told = row
    ours, theirs = (
        found.judged[what] if what in found.judged else getattr(found, what)
        for found in map(runs_of, names)
    )
    if what == "curves":  # their last bins
        ours, theirs = ours[:, -1], theirs[:, -1]
    found = paired_difference(ours, theirs[: len(ours)])
    assert told == ("more" if found.low > 0 else "less" if found.high < 0 else "either")


def test_the_curve_rises_slowly_because_the_cart_leaves_the_track():
    tracks = stored_runs("cartpole_ends")
    steps = tracks["PPO"].steps
    gains = tracks["endless track"].curves - tracks["PPO"].curves
    gain = gains[:, (steps > 10_000) & (steps <= 26_000)].mean(1)
    assert [round(x) for x in (gain.mean(), *t_interval(gain))] == [99, 55, 144]
    assert (len(gain), gain.min() > 0) == (10, True)


def test_the_zoo_is_ahead_where_the_page_says_so():
    rows, _ = read_table(RESULTS / "published.csv")
    zoo = {
        (row["agent"], row["env"]): (float(row["return"]), int(row["steps"]))
        for row in rows
    }
    assert "RL Zoo: -73.5" in published("PPO", "Acrobot-v1")
    for agent, env, name, times in (
        ("ppo", "Acrobot-v1", "acrobot, PPO", None),
        ("ppo", "LunarLanderContinuous-v3", "lander_continuous, PPO", None),
        ("td3", "HalfCheetah-v5", "td3_cheetah, TD3", 10),
        ("sac", "HalfCheetah-v5", "sac_cheetah, SAC", 10),
        ("dqn", "MountainCar-v0", "rainbow_mountaincar, DQN", 2),
        ("dqn", "CartPole-v1", "dqn_cartpole, DQN", 1),
        ("a2c", "Pendulum-v1", "arc_pendulum, A2C", None),
    ):
        (mean, steps), runs = zoo[agent, env], runs_of(name)
        assert mean > runs.final.mean(), name
        assert times is None or steps == times * runs.steps[-1]


def test_the_same_seeds_a_week_later():
    rows, _ = read_table(RESULTS / "again.csv")
    moves: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        name, variant = row["experiment"], row["variant"]
        if not row["now"] or variant == "DQN, other seeds":
            continue
        moves.setdefault((name, variant), []).append(
            float(row["now"]) - float(row["then"])
        )
        if name.startswith(("reinforce", "a2c", "lander_")):
            assert moves.pop((name, variant)) == [0], "these come to the same bits"
    whole = [np.mean(each) for each in moves.values() if len(each) >= 5]
    assert (sum(x < 0 for x in whole), sum(x > 0 for x in whole)) == (9, 7)


def test_ddpg_and_its_relatives_relapse_and_most_recover():
    runs = stored_runs("ddpg_pendulum")
    gaps = {n: r.watched["estimate"] - r.watched["earned"] for n, r in runs.items()}
    relapsed = {
        name: (np.maximum.accumulate(gap < 20, axis=1) & (gap > 50)).any(1).sum()
        for name, gap in gaps.items()
    }
    assert relapsed == {"DDPG": 5, "HDDPG": 4, "TD3": 3}
    assert sum((gap[:, -1] > 50).sum() for gap in gaps.values()) == 1


def test_weak_runs_of_discrete_sac_drift_at_either_temperature():
    for name in ("sac_cartpole_sure, SAC", "sac_cartpole_cool, SAC"):
        found = runs_of(name)
        assert (found.judged["off_track"][found.final < 400] > 0.8).all()


def test_apex_gains_less_from_shorter_targets_than_seeds_differ():
    for name, alone, with_actors in (("waiting", 8, 16), ("long", 10, 8)):
        runs = stored_runs(f"apex_{name}")
        assert [round(x.judged["lag"].mean()) for x in runs.values()] == [0, 1, 3, 7]
        reached = {kind: (x.final >= 475).sum() for kind, x in runs.items()}
        assert reached.pop("no actors") == alone
        assert sum(reached.values()) == with_actors


def test_rainbow_knows_mazes_best_and_starpilot_is_near_its_floor():
    solved = stored_runs("rainbow_mazes") | stored_runs("ppg_maze")
    for judge in ("training", "unseen"):
        known = solved["Rainbow"].judged[judge]
        assert all(known.max() < solved[x].judged[judge].min() for x in ("PPO", "PPG"))
    for runs in stored_runs("ppg_starpilot").values():
        assert np.abs(runs.judged["unseen"] - 2.5).max() < 0.7


def test_hybrid_losses_reach_the_goal_or_miss_it():
    runs = stored_runs("moving")
    for loss in ("joint", "per head"):
        assert t_interval(runs[loss].final)[0] > 1.5, "so does the whole interval"
    for loss in ("not masked", "ratio not masked"):
        assert runs[loss].final.mean() < 1.5 < runs["entropy not masked"].final.mean()


@pytest.mark.parametrize("agent", ["TD3", "SAC"])
def test_the_peer_lies_within_our_runs_on_the_cheetah(agent):
    ours = stored_runs(f"{agent.lower()}_cheetah")[agent].final
    theirs = only(stored_runs(f"{agent.lower()}_cheetah_peer")).final
    assert ours.min() < theirs.min() <= theirs.max() < ours.max()


def test_nothing_gave_way_but_two_mutants():
    rows, _ = read_table(RESULTS / "chaos.csv")
    failed = [[*row.values()][2:4] for row in rows if row["times"] != row["held"]]
    assert failed == [["200", "198"]]
    assert sum(int(row["times"]) for row in rows if row["kind"] == "kills") >= 200


# --- Speed ----------------------------------------------------------------------------


# How many times as fast as the peer, where a case and a method have these words.
@each_row("""
signatures | five tensors | @checked | 12.0
signatures | share | alone | 20.1
ppo_loop | CartPole-v1, 4 | plain | 1.7
ppo_loop | CartPole-v1, 4 | numpy_act | 2.0
ppo_loop | CartPole-v1 | by hand | 3.6 2.8
ppo_loop | Cheetah | by hand | 3.2 3.2
ppo_loop | Breakout | plain | 1.0
ppo_loop | Breakout | alone | 1.7
recurrent_loop |  | PPO | 4.7
devices | 7e+09 | CUDA | 97.0 65.1
devices | 9e+05 | CUDA | 0.3
devices | iteration | CUDA | 0.5 0.6 0.6 0.5 0.7 0.8 0.6 0.6 0.6
td3_loop |  | TD3.learn | 1.2 1.1
ppg_aux |  | Phase | 1.3 1.2 1.1 1.1
replay | B = 64, 1000 entries | SumTree | 0.7
replay | B = 64, 4000 entries | SumTree | 0.7
import_time |  | ppo, after torch | 7.4
""")
def test_it_is_so_many_times_as_fast_as_the_page_says(row):
    name, case, method, *told = row
    rows, _ = read_results(RESULTS / f"{name}.csv")
    found = [x.ratio for x in rows if case in x.case and x.method.endswith(method)]
    assert " ".join(f"{ratio:.1f}" for ratio in found) == told[0]


# Whether each goal is reached, in the order of the table.
@each_row("""
advantages | ++++-+
import_time | +-
ppo_loop | ----++-
dqn_loop | +-+-
td3_loop | +---
sac_loop | +---
hybrid | +---
""")
def test_goals_are_reached_where_the_page_says_so(row):
    name, told = row
    rows, _ = read_results(RESULTS / f"{name}.csv")
    reached = [row.reached for row in rows if row.reached is not None]
    assert "".join("-+"[each] for each in reached) == told


def test_cartpole_is_solved_as_soon_as_the_page_says():
    rows, _ = read_table(RESULTS / "ppo_solve.csv")

    def of(method, unit):
        return np.array([float(row[unit]) for row in rows if row["method"] == method])

    peer, fast, own = "stable-baselines3", "PPO, numpy_act", "PPO, by hand"
    seconds = {name: np.median(of(name, "cpu_seconds")) for name in (peer, fast, own)}
    assert round(seconds[own] / seconds[peer], 2) == 0.22
    assert 1.8 < seconds[fast] / seconds[own] < 2.2
    assert np.median(of(own, "steps")) <= np.median(of(peer, "steps"))
