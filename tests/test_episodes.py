"""The guards of the loop, one by one; ``test_agents`` holds them in the loop itself."""

import copy
import re
import sys
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from fuzz import assert_held
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from literate_rl.apps.training import train
from literate_rl.data.agents import Collector, make_envs
from literate_rl.data.episodes import (
    EpisodeCounter,
    Held,
    check_chain,
    check_copies,
    check_experience,
    check_final,
    check_num_envs,
    check_seen,
    env_maker,
    env_seed,
    mean_return,
    on_cpu,
    plain_actions,
    resets_later,
)
from literate_rl.ground.nests import plain_space
from literate_rl.runs.evaluation import evaluate
from literate_rl.runs.runs import flat_env, record_video

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.chaos_worlds import FAULTS, UNSEEN, Breaking


def cartpole():
    return gym.make("CartPole-v1")


def test_a_maker_makes_a_new_environment_at_each_call():
    for env in ("CartPole-v1", cartpole):
        make = env_maker(env)
        assert isinstance(make(), gym.Env)
        assert make() is not make()


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        ("NoSuchTask-v0", ValueError, "env 'NoSuchTask-v0' cannot be made"),
        (dict, TypeError, "to be a `gymnasium.Env` but got <class 'dict'>"),
    ],
)
def test_what_cannot_be_made_is_named_when_it_is_made(env, error, message):
    make = env_maker(env)
    with pytest.raises(error, match=message):
        make()


def test_copies_that_are_one_object_are_found():
    one = cartpole()
    with pytest.raises(ValueError, match="env must make a new environment"):
        check_copies(SyncVectorEnv([lambda: one] * 2))
    check_copies(SyncVectorEnv([cartpole] * 2))


def test_copies_of_one_object_are_found_through_what_holds_them():
    one = cartpole()
    with pytest.raises(ValueError, match="env must make a new environment"):
        make_envs(lambda: one, 2)
    with pytest.raises(ValueError, match="env must make a new environment"):
        make_envs(partial(flat_env, lambda: one), 2)


def test_env_seeds_of_neighbours_have_nothing_in_common():
    seeds = [env_seed(seed, step) for seed in range(20) for step in range(20)]
    assert all(0 <= seed < 2**32 for seed in seeds)
    # A vector environment gives copy k the seed `seed + k`: those must not meet either.
    apart = np.diff(sorted(seeds))
    assert apart.min() > 64
    assert env_seed(3, 4) == env_seed(3, 4)


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - UNSEEN))
def test_an_environment_that_breaks_its_interface_is_named(fault):
    envs = make_envs(partial(Breaking, fault, 2, continuous=False), 2)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(BaseException) as failed:  # noqa: PT011 (or a note says it)
        envs.step(np.zeros(2, int))
    own = {"raises": KeyError, "panics": BaseException}.get(fault)
    words = failed.value.__notes__[0] if own else str(failed.value)
    assert failed.type is (own or ValueError)
    assert words.startswith("env 'Breaking' failed in step: ")
    assert failed.value.__notes__[-2:] == ["in step 2 of its episode", "in copy 0"]


class EnoughError(Exception):
    """What a user raises to end a training."""


class EndError(BaseException):
    """What no ``except Exception`` catches."""


class Raising(gym.Env):
    """Raises something in one of its methods, after a few steps."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self, error: BaseException, where: str, render_mode: str | None = None
    ) -> None:
        self.error, self.where, self.render_mode = error, where, render_mode
        self.count = 0
        self.fail("make")

    def fail(self, where: str, count: int = 0) -> None:
        if self.where == where and self.count >= count:
            raise self.error

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.fail("reset", 8)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.fail("step", 4)
        return np.zeros(2, np.float32), 1.0, self.count % 8 == 0, False, {}

    def render(self) -> Any:
        self.fail("render", 3)
        return np.zeros((16, 16, 3), np.uint8)

    def close(self) -> None:
        self.fail("close")


class Around(gym.Wrapper):
    """A wrapper of one's own, which does nothing."""


ERRORS = [EnoughError("x"), EndError("x"), StopIteration(3)]
ERRORS += [ValueError("x"), OSError(2, "x")]
PLACES = "make", "reset", "step", "close"
CALLS = {
    "train": lambda make, _: train("PPO", make, total_steps=256, progress=False),
    "train in a wrapper": lambda make, _: train(
        "DQN", make, wrappers=[Around], total_steps=256, progress=False
    ),
    "train actors": lambda make, _: train(
        "IMPALA", make, total_steps=256, actors=2, progress=False
    ),
    "evaluate": lambda make, _: evaluate(Still(), make, 3),
}


class Still(nn.Module):
    """A policy that always does the same."""

    def act(self, obs: Any, noise: Any) -> Any:
        return torch.zeros(len(obs), dtype=torch.int64)

    def to_env(self, action: Any) -> Any:
        return action.numpy()

    def parameters(self, recurse: bool = True) -> Any:
        return iter([torch.zeros(1)])


def raised_by(call: Any, error: BaseException, where: str, tmp_path: Path) -> Any:
    """Call with an environment that raises; return what came out of it."""
    made = copy.copy(error)
    with pytest.raises(type(error)) as failed:
        call(partial(Raising, made, where), tmp_path)
    assert failed.value is made, "the very exception, with its attributes"
    return failed.value.__notes__


@pytest.mark.parametrize("error", ERRORS, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("call", CALLS)
def test_an_exception_of_an_environment_arrives_as_itself(
    call: str, where: str, error: BaseException, tmp_path: Path
) -> None:
    first, *others = raised_by(CALLS[call], error, where, tmp_path)
    words = "cannot be made: " if where == "make" else f"failed in {where}: "
    assert re.match(f"env .*{words}{type(error).__name__}: ", first)
    assert re.search(r"test_episodes\.py:\d+\)$", first)
    assert not any(x.startswith("env ") for x in others), "once is enough"
    if where == "step":
        assert "in step 4 of its episode" in others
        assert "in copy 0" in others


@pytest.mark.parametrize("where", ["make", "reset", "step", "render", "close"])
def test_so_it_does_while_it_is_filmed(where: str, tmp_path: Path) -> None:
    def film(make: Any, place: Path) -> None:
        record_video(Still(), make, place / "film.mp4")

    assert raised_by(film, EnoughError(), where, tmp_path)[0].startswith("env ")


def test_a_wrapper_that_raises_keeps_its_type() -> None:
    def wrap(env: Any) -> Any:
        raise EnoughError("too narrow")

    with pytest.raises(EnoughError) as failed:
        train("PPO", "CartPole-v1", wrappers=[wrap], progress=False)
    (note,) = failed.value.__notes__
    assert re.match(
        "wrapper .*wrap.* does not fit 'CartPole-v1': EnoughError: too", note
    )


def test_an_environment_is_held_once():
    for make in (partial(flat_env, "CartPole-v1"), partial(flat_env, Grid)):
        env, times = env_maker(make)(), 0
        while isinstance(env, gym.Wrapper):
            times, env = times + isinstance(env, Held), env.env
        assert times == 1


class Grid(gym.Env[Any, Any]):
    """Shows a number and pays with a number of NumPy's, in one of its forms."""

    observation_space = gym.spaces.Discrete(3)
    action_space = gym.spaces.Discrete(2)
    reward: Any = 1

    def reset(self, **_: Any) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return np.int64(2), self.reward, np.False_, False, {}


@pytest.mark.parametrize("kind", [int, bool, np.float32, np.int8, np.bool_, np.array])
def test_all_kinds_of_numbers_are_taken(kind):
    env = env_maker(Grid)()
    env.unwrapped.reward = kind(1)
    assert env.step(0)[1] == 1


def test_actions_that_fit_come_back_as_an_array():
    envs = SyncVectorEnv([cartpole] * 2)
    action = torch.tensor([0, 1])
    np.testing.assert_array_equal(plain_actions(envs, on_cpu(action)), [0, 1])
    with pytest.raises(ValueError, match=r"act must return shape \(2,\), got \(2, 1\)"):
        plain_actions(envs, action.unsqueeze(1))
    with pytest.raises(TypeError, match="act must return a tensor, got ndarray"):
        on_cpu(action.numpy())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_found_at_its_step(value):
    obs = np.zeros((4, 3, 2))
    check_experience(100, obs=obs, reward=np.zeros((4, 3)))
    obs[2, 1, 0] = value
    where = rf"obs of environment 1 is {value} at step 106 \(row 2 of the rollout\)"
    with pytest.raises(ValueError, match=where):
        check_experience(100, reward=np.zeros((4, 3)), obs=obs)


@given(st.integers(0, 999), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_episodes_are_counted_across_rollouts(seed, lengths):
    random = np.random.default_rng(seed)
    steps = sum(lengths)
    reward = random.normal(size=(steps, 2))
    done, real = random.random((2, steps, 2)) < [[[0.3]], [[0.8]]]
    counter, parts, start = EpisodeCounter(2), [], 0
    for length in lengths:
        rows = slice(start, start + length)
        parts.append(counter.add(reward[rows], done[rows], real[rows]))
        start += length
    returns, counts = np.concatenate(parts, axis=1)
    for b in range(2):
        paid = taken = 0.0
        for t in range(steps):
            paid, taken = paid + reward[t, b], taken + real[t, b]
            if done[t, b]:
                assert returns[t, b] == pytest.approx(paid)
                assert counts[t, b] == taken
                paid = taken = 0.0
            else:
                assert np.isnan(returns[t, b])
                assert np.isnan(counts[t, b])


def test_the_signature_of_a_chain_is_held():
    chain = lambda: np.full((3, 3), 0.2)  # noqa: E731
    reward = lambda: np.ones(3)  # noqa: E731
    assert assert_held(check_chain, Random(0), transition=chain, reward=reward) > 0


def test_an_infinite_value_is_refused():
    check_chain(np.eye(2), np.ones(2), 0.99)
    with pytest.raises(ValueError, match="gamma must be below 1"):
        check_chain(np.eye(2), np.ones(2), 1.0)


class Answers(gym.Env):
    """Answers what it was told to."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any, obs: Any) -> None:
        self.observation_space, self.obs = space, obs

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.obs, {}


BOX_OF_TWO = spaces.Box(-1, 1, (2,))
BYTES = spaces.Box(0, 255, (4, 4, 3), np.uint8)
SMALL = spaces.Box(-5, 5, (2,), np.int8)


class Old(gym.Env):
    """An environment as they were before 2022, or with another answer of its own."""

    observation_space, action_space = BOX_OF_TWO, spaces.Discrete(2)

    def __init__(self, answer):
        self.answer = answer

    def reset(self, **_):
        return self.answer

    def step(self, action):
        return self.answer


@pytest.mark.parametrize(
    ("method", "answer", "got"),
    [
        ("reset", np.zeros(2, np.float32), "ndarray"),
        ("reset", (np.zeros(2),), "1 things"),
        ("reset", None, "NoneType"),
        ("step", (np.zeros(2), 1.0, False, {}), "4 things"),
        ("step", [np.zeros(2), 1.0, False, False, {}, 0], "6 things"),
        ("step", None, "NoneType"),
    ],
)
def test_an_answer_with_too_few_things_is_told_in_one_sentence(method, answer, got):
    parts = {"reset": "obs, infos", "step": "obs, reward, terminated, truncated, infos"}
    message = f"env 'Old' failed in {method}: it must return {parts[method]}, got {got}"
    with pytest.raises(ValueError, match=message) as refusal:
        getattr(Held(Old(answer)), method)(*([0] if method == "step" else []))
    assert refusal.value.__cause__ is None  # not what Python says of unpacking


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (spaces.Discrete(4), 7, r"obs must be in Discrete\(4\), got 7"),
        (spaces.Discrete(4), -1, r"obs must be in Discrete\(4\), got -1"),
        (spaces.MultiDiscrete([2, 3]), np.array([5, 5]), "obs must be in MultiDis"),
        (spaces.Dict(a=BOX_OF_TWO), {"a": np.zeros((1, 2))}, r"obs\['a'\] must have"),
        (spaces.Dict(a=BOX_OF_TWO), {}, r"obs must have \['a'\], got dict"),
        (spaces.Dict(a=BOX_OF_TWO), np.zeros(2), "obs must have .*, got ndarray"),
        (spaces.Tuple([BOX_OF_TWO, spaces.Discrete(2)]), (np.zeros(2), 2), r"obs\[1\]"),
        (spaces.Tuple([BOX_OF_TWO]), (), r"obs must have \[0\], got tuple"),
        (BYTES, np.full((4, 4, 3), 0.9), "obs must hold uint8 like its space, got flo"),
        (
            BYTES,
            np.full((4, 4, 3), np.nan),
            "obs must hold uint8 like its space, got f",
        ),
        (
            BYTES,
            np.full((4, 4, 3), -1),
            "obs must hold uint8 like its space, got int64",
        ),
        (SMALL, np.array([300, 1]), "obs must hold int8 like its space, got 300"),
        (SMALL, np.array([1, 200], np.uint8), "obs must hold int8 .*, got 200"),
        (SMALL, [0.6, -0.7], "obs must hold int8 like its space, got float64"),
        (spaces.Dict(a=SMALL), {"a": [0.6, -0.7]}, r"obs\['a'\] must hold int8"),
        (spaces.Tuple([SMALL]), (np.array([5, -129]),), r"obs\[0\] must .* got -129"),
        (spaces.Box(0, 1, (2,), bool), np.array([0, 7]), "obs must hold bool like"),
    ],
)
def test_an_observation_outside_of_its_space_is_named(space, obs, message) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        Held(Answers(space, obs)).reset()
    assert str(refusal.value).startswith("env 'Answers' failed in reset: ")


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (spaces.Discrete(4), 3),
        (spaces.Discrete(4), np.int32(3)),
        (spaces.Discrete(4, start=-2), np.array(-2)),
        (spaces.Box(-1, 1, (2,)), np.array([5.0, -5.0])),  # out of bounds, as many are
        (spaces.Box(-1, 1, (2,)), np.array([1, 0])),
        (SMALL, [127, -128]),
        (SMALL, np.array([True, False])),
        (spaces.Tuple([BOX_OF_TWO, spaces.Discrete(2)]), (np.zeros(2), 1)),
        (
            spaces.Dict(a=BOX_OF_TWO, b=spaces.MultiBinary(2)),
            {"a": [0, 0], "b": np.ones(2, np.int8)},
        ),
    ],
)
def test_an_observation_of_its_space_passes(space, obs) -> None:
    seen, infos = Held(Answers(space, obs)).reset()
    np.testing.assert_equal(seen, obs)
    assert infos == {}


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
@pytest.mark.parametrize("came", [None, "Box"])
def test_what_is_no_space_is_named(name: str, came: Any) -> None:
    env = Answers(BOX_OF_TWO, np.zeros(2))
    setattr(env, name, came)
    words = f"env 'Answers' must have a Space of Gymnasium's as {name}, got {came!r}"
    with pytest.raises(TypeError, match=words):
        flat_env(lambda: env)


class Reusing(gym.Env[Any, Any]):
    """Counts its steps in one array, which all of its answers hold."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any, around: Any) -> None:
        self.observation_space, self.around = space, around
        self.count, self.render_mode = np.zeros(2, np.float32), "rgb_array"
        self.infos: Any = {"at": [self.count], "more": {"at": self.count}, "me": self}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count[:] = 0
        self.infos["more"]["steps"] = 0
        return self.around(self.count), self.infos

    def step(self, action: Any) -> Any:
        self.count += 1
        self.infos["more"]["steps"] += 1
        return self.around(self.count), 1.0, False, False, self.infos

    def render(self) -> Any:
        return self.count


class Pair(NamedTuple):
    """A tuple with names, as graphs are."""

    left: Any
    right: Any


@pytest.mark.parametrize(
    ("space", "around"),
    [
        (BOX_OF_TWO, lambda x: x),
        (BOX_OF_TWO, torch.from_numpy),
        (spaces.Dict(a=BOX_OF_TWO, b=BOX_OF_TWO), lambda x: {"a": x, "b": x}),
        (spaces.Tuple([spaces.Dict(a=BOX_OF_TWO)]), lambda x: ({"a": x},)),
        (spaces.Tuple([BOX_OF_TWO] * 2), lambda x: [x, x]),
        (spaces.Tuple([BOX_OF_TWO] * 2), lambda x: Pair(x, x)),
    ],
)
def test_what_an_environment_hands_out_is_copied(space, around) -> None:
    env = Held(Reusing(space, around))
    first, start = env.reset()
    drawn = env.render()
    second, _, _, _, infos = env.step(0)
    env.step(0)
    torch.testing.assert_close(first, around(np.zeros(2, np.float32)))
    torch.testing.assert_close(second, around(np.ones(2, np.float32)))
    assert type(first) is type(around(np.zeros(2)))
    assert drawn.tolist() == [0, 0]
    for steps, told in enumerate((start, infos)):
        assert told["more"]["steps"] == steps
        assert told["at"][0].tolist() == told["more"]["at"].tolist() == [steps, steps]
        assert told["me"] is env.unwrapped  # an object is nobody's to copy


def remembered() -> Any:
    """Return a member of `AutoresetMode` as another import of it would have it."""
    return Enum("AutoresetMode", {mode.name: mode.value for mode in AutoresetMode})


class Wrapping(VectorWrapper):
    """Changes nothing."""


class Silent(VectorEnv[Any, Any, Any]):
    """Has a mode in its metadata, which may be that of its class, and in itself."""

    num_envs = 1

    def __init__(self, metadata: dict[str, Any], **attributes: Any) -> None:
        self.metadata = metadata
        vars(self).update(attributes)


def copies(mode: Any) -> SyncVectorEnv:
    return SyncVectorEnv([cartpole], autoreset_mode=mode)


@pytest.mark.parametrize(
    ("envs", "later"),
    [
        (copies(AutoresetMode.NEXT_STEP), True),
        (copies(AutoresetMode.SAME_STEP), False),
        (make_envs("CartPole-v1"), False),
        (gym.make_vec("CartPole-v1", vectorization_mode="vector_entry_point"), True),
        (Wrapping(copies(AutoresetMode.NEXT_STEP)), True),
        (RecordEpisodeStatistics(copies(AutoresetMode.SAME_STEP)), False),
        *(
            (Silent({"autoreset_mode": mode}), later)
            for modes, later in (
                ((remembered().NEXT_STEP, "NextStep", "NEXT_STEP", "next_step"), True),
                ((remembered().SAME_STEP, "SameStep", "SAME_STEP"), False),
            )
            for mode in modes
        ),
        # An object knows better than its class, whose metadata another may have set.
        (
            Silent(
                {"autoreset_mode": AutoresetMode.NEXT_STEP},
                autoreset_mode=AutoresetMode.SAME_STEP,
            ),
            False,
        ),
    ],
)
def test_the_mode_of_an_environment_is_its_own(envs, later) -> None:
    assert resets_later(envs) is later
    assert Collector(envs).resets_later is later


@pytest.mark.parametrize(
    ("envs", "got"),
    [
        (Silent({}), "None"),
        (Wrapping(Silent({})), "None"),
        (copies(AutoresetMode.DISABLED), "DISABLED"),
        (Silent({"autoreset_mode": "Disabled"}), "Disabled"),
        (Silent({"autoreset_mode": remembered().DISABLED}), "DISABLED"),
        (Silent({"autoreset_mode": True}), "True"),
    ],
)
def test_a_mode_that_cannot_be_served_is_named(envs, got) -> None:
    words = (
        rf"NEXT_STEP or SAME_STEP as metadata\['autoreset_mode'\], got {got}: name it"
    )
    with pytest.raises(ValueError, match=words):
        Collector(envs)


@pytest.mark.parametrize(
    ("infos", "later", "message"),
    [
        ({}, False, r"mode SAME_STEP infos must have .* copies \[1\], got it for \[\]"),
        (
            {"_final_obs": [True, True]},
            False,
            r"mode SAME_STEP .* copies \[1\], got it for \[0, 1\]",
        ),
        (
            {"_final_obs": [False, True]},
            True,
            r"mode NEXT_STEP .* copies \[\], got it for \[1\]",
        ),
    ],
)
def test_a_mode_that_breaks_its_promise_is_found(infos, later, message) -> None:
    done = np.array([False, True])
    check_final({"_final_obs": done}, done, later=False)
    check_final({}, done, later=True)
    with pytest.raises(ValueError, match=message):
        check_final(infos, done, later)


def test_infos_that_are_no_dict_are_named() -> None:
    collector = Collector(DictInfoToList(make_envs("CartPole-v1", 2)))
    with pytest.raises(TypeError, match="infos must be a dict, got list"):
        collector.reset(seed=0)
    with pytest.raises(TypeError, match="infos must be a dict, got list"):
        check_final([], np.array([False]), later=False)


def test_a_single_environment_is_no_vector_of_them() -> None:
    with pytest.raises(TypeError, match="envs must be a VectorEnv, got TimeLimit: "):
        check_num_envs(cartpole(), 1)
    with pytest.raises(ValueError, match="envs must have 3 copies, got 1"):
        check_num_envs(make_envs("CartPole-v1"), 3)


@pytest.mark.parametrize("error", [SystemExit(), SystemExit(0), GeneratorExit("x")])
def test_an_environment_that_leaves_python_is_an_error(error) -> None:
    class Leaving(gym.Env):
        observation_space, action_space = BOX_OF_TWO, spaces.Discrete(2)

        def step(self, action: Any) -> Any:
            raise error

    with pytest.raises(ValueError, match="env 'Leaving' failed in step: "):
        Held(Leaving()).step(0)


def test_ctrl_c_in_an_environment_is_ctrl_c() -> None:
    class Slow(gym.Env):
        observation_space, action_space = BOX_OF_TWO, spaces.Discrete(2)

        def step(self, action: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as pressed:
        Held(Slow()).step(0)
    assert not hasattr(pressed.value, "__notes__"), "not the environment's fault"


# --- Returns, and what a policy expects -----------------------------------------------


def test_a_mean_of_returns_knows_what_it_is_the_mean_of() -> None:
    none = float("nan")
    table = torch.tensor([[1.0, none], [none, 4.0], [none, none]])
    mean = mean_return(table)
    assert (mean, mean.returns) == (2.5, (1.0, 4.0))
    assert mean == table.nanmean().item()
    empty = mean_return(table[2:])
    assert empty != empty
    assert empty.returns == ()


def test_a_policy_that_has_learned_from_something_else_is_told() -> None:
    envs = make_envs("CartPole-v1")
    for space in (spaces.Box(-1, 1, (4,)), plain_space(spaces.MultiBinary(4))):
        check_seen(Recipe({"observation_space": space}), envs)
    for silent in (nn.Linear(4, 2), Recipe({}), Recipe({"hidden": 3})):
        check_seen(silent, envs)
    five = Recipe({"observation_space": spaces.Box(-1, 1, (5,))})
    with pytest.raises(ValueError, match=r"must show 5 numbers, .* got 4: with wrapp"):
        check_seen(five, envs)
    envs.close()


class Recipe(nn.Module):
    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.recipe = ("", arguments)
