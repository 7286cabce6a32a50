# Generated from chapters/book/rooms.py (edit there); digest 53d15cba41bb12bd
"""Six rooms: a world with known answers, and a check for whoever learned in it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from annotated_types import Ge
from gymnasium.wrappers import TimeLimit

from torch import Tensor

from literate_rl.ground.signatures import Count, Positive, check_that, checked

__all__ = [
    "ROOMS",
    "House",
    "house",
    "room_answers",
    "six_rooms",
    "values_and_greedy",
    "visit_rooms",
]


class House(gym.Env[Any, Any]):
    """Six rooms with nine states; learn in it with the discount 0.8.

    ``house`` puts the time limit around it that the room "lasts" needs.
    """

    observation_space = gym.spaces.Box(0, 1, (9,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode in one of the rooms."""
        super().reset(seed=seed)
        self.state = int(self.np_random.choice([0, 1, 2, 3, 5, 6, 7, 8]))
        return np.eye(9, dtype=np.float32)[self.state], {}

    def step(self, action: Any) -> Any:
        """Take one step; return observation, reward, two flags and an empty dict."""
        right = int(action)
        pays = [1, 1, -1, 0, 1, 1, right, right, 1 - right][self.state]
        # "waits" goes on for one step, and "lasts" until the time limit.
        terminated = self.state not in (3, 5)
        if self.state == 3:
            self.state = 4
        obs = np.eye(9, dtype=np.float32)[self.state]
        return obs, float(pays), terminated, False, {}


def house(**_: Any) -> gym.Env[Any, Any]:
    """Make a house in which an episode has five steps at most."""
    return TimeLimit(House(), 5)


# The exact answer of each room, and what the room tests.
ROOMS = {
    "pays": (1.0, "the critic's loss, and the end of an episode"),
    "reads": (1.0, "observations reach the critic"),
    "waits": (0.8, "discount and next value"),
    "lasts": (5.0, "the two flags: a time limit is no end of the task"),
    "chooses": (1.0, "the sign and the form of the policy's loss"),
    "both": (1.0, "an advantage belongs to its observation"),
}
States = Callable[[Tensor], Any]

# Who comes nearer by less than this share of what is missing stands still.
STILL = 0.02


def values_and_greedy(q: States) -> tuple[States, States]:
    """Return the values and the greedy probabilities that action values stand for.

    Args:
        q: Function from observations (B, 9) to the values of both actions, (B, 2).
    """
    return (
        lambda obs: torch.as_tensor(q(obs)).amax(-1),
        lambda obs: torch.eye(2)[torch.as_tensor(q(obs)).argmax(-1).cpu()],
    )


@torch.no_grad()
def room_answers(value: States, prob: States) -> dict[str, float]:
    """Return what an agent says about each room.

    "reads" is half the difference of two values, "both" the mean of two probabilities.

    Args:
        value: Function from observations (B, 9) to their values, (B,) or (B, 1).
        prob: Function from observations to the probabilities of left and right, (B, 2).
    """
    states = torch.eye(9)
    v = torch.as_tensor(value(states)).cpu().float().view(9).tolist()
    probs = torch.as_tensor(prob(states)).cpu().float().view(9, 2)
    sums = probs.sum(-1)
    fits = bool(((sums - 1).abs() < 1e-3).all() and (probs >= 0).all())
    words = f"rows that sum to 1, got sums from {sums.min():.3g} to {sums.max():.3g}"
    check_that(fits, f"prob must return {words}: logits need a softmax")
    right = probs[:, 1].tolist()
    return {
        "pays": v[0],
        "reads": (v[1] - v[2]) / 2,
        "waits": v[3],
        "lasts": v[5],
        "chooses": right[6],
        "both": (right[7] + 1 - right[8]) / 2,
    }


@checked
def six_rooms(
    value: States, prob: States, tolerance: Positive = 0.15
) -> dict[str, float]:
    """Check what an agent learned in the house; return its answers.

    The two functions are those of ``room_answers``.

    Args:
        value: Function from observations to values.
        prob: Function from observations to probabilities.
        tolerance: How far an answer may be from the exact one.

    Raises:
        AssertionError: If a room is answered wrongly. It names each such room, what was
            expected, what came, and what the room tests.
    """
    told = room_answers(value, prob)
    wrong = {room: f"got {told[room]:.2f}" for room in misses(told, tolerance)}
    if wrong:
        raise AssertionError(f"{count(wrong)} wrong\n{lines(wrong, ())}")
    return told


def misses(told: dict[str, float], tolerance: float = 0.0) -> dict[str, float]:
    """Return by how much each wrong answer misses; NaN is wrong, too."""
    far = {room: abs(told[room] - exact) for room, (exact, _) in ROOMS.items()}
    return {room: miss for room, miss in far.items() if not miss <= tolerance}


def count(rooms: Collection[str]) -> str:
    """Say how many rooms there are."""
    number = len(rooms)
    return f"{number} of 6 rooms {'is' if number == 1 else 'are'}"


def lines(got: dict[str, str], moving: Collection[str]) -> str:
    """Say of each room what it tests, or that it is not there yet."""
    return "\n".join(
        f"  {room:8s} expected {ROOMS[room][0]:g}, {words}: "
        + ("not there yet" if room in moving else ROOMS[room][1])
        for room, words in got.items()
    )


@checked
def visit_rooms(
    train: Callable[[int], tuple[States, States]],
    iterations: Count = 30,
    tolerance: Positive = 0.15,
    visits: Annotated[int, Ge(2)] = 4,
) -> tuple[dict[str, float], int]:
    """Check a learner; where it is wrong, again after twice the training.

    Args:
        train: Function from a number of iterations to the two functions of
            ``room_answers``, after so many iterations from the start.
        iterations: Iterations before the first visit. Each visit has twice as many.
        tolerance: How far an answer may be from the exact one.
        visits: How often to ask at most.

    Returns:
        The answers, and the iterations that they took.

    Raises:
        AssertionError: If a room is answered wrongly. Of one that stands still it says
            what the room tests, of one that moves that it is not there yet.
    """
    told = before = room_answers(*train(iterations))
    coming, gains = set(ROOMS), dict.fromkeys(ROOMS, 0.0)
    for _ in range(visits - 1):
        if not coming & misses(told, tolerance).keys():
            break
        before, iterations = told, 2 * iterations
        told = room_answers(*train(iterations))
        was, now = misses(before), misses(told)
        gain = {room: was.get(room, 0.0) - now.get(room, 0.0) for room in ROOMS}
        # It comes nearer, and no slower than before; or a third of the way is done.
        coming = {
            room
            for room in now
            if gain[room] > STILL * was.get(room, 0.0)
            and (2 * gain[room] > gains[room] or 3 * now[room] < 2 * was[room])
        }
        gains = gain
    wrong = misses(told, tolerance)
    if not wrong:
        return told, iterations
    # As long as one room is on its way, another may move away from its answer: values
    # of a young critic are often too high for a while. What stands still is wrong.
    moves = {room for room in wrong if abs(gains[room]) > STILL * wrong[room]}
    moving = moves if coming & wrong.keys() else set()
    said = f"after {iterations} iterations {count(wrong.keys() - moving)} wrong"
    if moving:
        said += f", {len(moving)} not there yet: train longer, or with a larger rate"
    elif len(wrong) == len(ROOMS):
        said += ", so nothing is learned: is the learning rate large enough?"
    got = {
        room: f"got {before[room]:.2f}, with twice the training {told[room]:.2f}"
        for room in wrong
    }
    raise AssertionError(f"{said}\n{lines(got, moving)}")
