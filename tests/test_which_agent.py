"""Which agent for my task: rows made from what the book knows, none by hand."""

from functools import partial

import gymnasium as gym
import pytest
from decisions import CHAPTERS
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from which_agent import (
    KINDS,
    SPECIAL,
    agents,
    from_here,
)

from literate_rl import train
from literate_rl.apps.commands import OFFERED

AGENTS = {agent.chapter.name: agent for agent in agents()}


def test_each_chapter_of_an_algorithm_has_a_row():
    assert AGENTS.keys() == set(CHAPTERS)
    named = {name for agent in AGENTS.values() for name in agent.commands}
    # Priorities are a setting of others.
    assert OFFERED.keys() - named == {"dqnper", "ddpgper"}


@pytest.mark.parametrize("name", AGENTS)
def test_the_kinds_of_actions_are_those_that_the_command_line_offers(name):
    agent = AGENTS[name]
    if name in SPECIAL:
        assert agent.kinds == (SPECIAL[name][1],)
        return
    told = {OFFERED[command].actions for command in agent.commands}
    wanted = {kind for words in told for kind in words.split(", ")}
    assert {*agent.kinds} == ({*KINDS} if told == {"all kinds"} else wanted)
    assert {*agent.kinds, *agent.refused} == set(KINDS)


def test_what_remembers_is_for_dear_steps_and_what_has_actors_does_not_wait():
    dear = {name for name, x in AGENTS.items() if "dear" in x.answers["price"]}
    assert dear == {"dqn", "rainbow", "ddpg", "td3", "sac", "discrete_sac", "apex"}
    actors = {name for name, x in AGENTS.items() if "yes" in x.answers["actors"]}
    assert actors == {"impala", "a3c", "apex"}


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("{doc}`pages <runs/runs>`", "{doc}`pages </chapters/runs/runs>`"),
        ("[a](#b)", "[a](/chapters/a2c.py#b)"),
        ("[c](ppg_evidence.md#d)", "[c](/chapters/ppg_evidence.py#d)"),
    ],
)
def test_references_of_a_chapter_are_seen_from_elsewhere(there, here):
    assert from_here(there, AGENTS["a2c"].chapter) == here


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_agents_without_actors_take_copies_in_processes(name):
    assert "no" in AGENTS[name].answers["actors"]
    make = partial(gym.make, "CartPole-v1")
    envs = AsyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    learner = train(name, envs, total_steps=64, progress=False).learner
    assert learner.config.num_envs == 2
    assert learner.step >= 64
    envs.close()
