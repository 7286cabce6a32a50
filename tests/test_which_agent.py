"""Which agent for my task: rows made from what the book knows, none by hand."""

import itertools
import re
from functools import partial

import gymnasium as gym
import pytest
from decisions import CHAPTERS
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from which_agent import (
    KINDS,
    QUESTIONS,
    SPECIAL,
    agents,
    from_here,
    questions,
    style,
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
    if told == {"all kinds"}:
        assert agent.kinds == tuple(KINDS)
        assert agent.refused == ()
    else:
        wanted = {kind for words in told for kind in words.split(", ")}
        assert set(agent.kinds) == wanted
    assert {*agent.kinds, *agent.refused} == set(KINDS)


def test_what_remembers_is_for_dear_steps_and_what_has_actors_does_not_wait():
    dear = {name for name, x in AGENTS.items() if "dear" in x.answers["price"]}
    assert dear == {"dqn", "rainbow", "ddpg", "td3", "sac", "discrete_sac", "apex"}
    actors = {name for name, x in AGENTS.items() if "yes" in x.answers["actors"]}
    assert actors == {"impala", "a3c", "apex"}


def test_the_style_sheet_says_where_no_agent_is_left():
    rules = style(list(AGENTS.values()))
    answers = [[None, *keys] for _, keys in QUESTIONS.values()]
    for keys in itertools.product(*answers):
        given = {q: key for q, key in zip(QUESTIONS, keys, strict=True) if key}
        left = [x for x in AGENTS.values() if fits(x, given)]
        picked = "".join(f":has(#which-{q}-{key}:checked)" for q, key in given.items())
        said = f".which-agent{picked} .which-none {{ display: block }}" in rules
        assert said == (not left)


def fits(agent, given):
    return all(key in agent.answers[question] for question, key in given.items())


def test_the_questions_can_be_answered_with_the_keyboard():
    html = questions()
    assert html.count("<fieldset>") == html.count("<legend>") == 3
    assert len(re.findall(r'type="radio"', html)) == html.count("<label>") == 3 + 8
    assert html.count(" checked>") == 3


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("{doc}`ppo`", "{doc}`/chapters/ppo`"),
        ("{doc}`pages <runs/runs>`", "{doc}`pages </chapters/runs/runs>`"),
        ("[a](../docs/results.md#b)", "[a](/docs/results.md#b)"),
        ("[a](#b)", "[a](/chapters/a2c.py#b)"),
        ("[c](ppg_evidence.md#d)", "[c](/chapters/ppg_evidence.py#d)"),
        ("{doc}`/docs/results` [a](https://x.y/z) `ppo`", ""),
    ],
)
def test_references_of_a_chapter_are_seen_from_elsewhere(there, here):
    assert from_here(there, AGENTS["a2c"].chapter) == (here or there)


@pytest.mark.parametrize("name", ["ppo", "a2c", "ppg", "dqn"])
def test_agents_without_actors_take_copies_in_processes(name):
    assert "no" in AGENTS[name].answers["actors"]
    make = partial(gym.make, "CartPole-v1")
    envs = AsyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    learner = train(name, envs, total_steps=64, progress=False).learner
    assert learner.config.num_envs == 2
    assert learner.step >= 64
    envs.close()
