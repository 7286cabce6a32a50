"""Prioritised draws and updates: trees of lists, of NumPy scalars, of whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import SEED, Case, Goal
from literate_rl.data.sum_tree import SumTree, importance_weights

ROUNDS = 31
ENTRIES = 50_000
BATCHES = (32, 64, 256, 1024)
SIZES = (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000)
ALPHA, BETA = 0.6, 0.4

Numbers = NDArray[np.float64]


class Memory(Protocol):
    """What draws places by their mass, and gives them another one."""

    def draw(self, chance: Numbers) -> tuple[NDArray[np.int64], Numbers]:
        """Return one place from each slice of the total, with its weight."""
        ...

    def update(self, place: NDArray[np.int64], priority: Numbers) -> None:
        """Give places new priorities."""
        ...


class Lists:
    """A binary tree of Python's floats, one draw and one update at a time.

    Openai/baselines' segment tree without its calls of an operator, and without its
    tree of minima.
    """

    def __init__(self, mass: Numbers) -> None:
        self.count = len(mass)
        self.half = 1 << (len(mass) - 1).bit_length()
        leaves = [*mass.tolist(), *[0.0] * (self.half - len(mass))]
        self.tree = [0.0] * self.half + leaves
        for node in reversed(range(1, self.half)):
            self.tree[node] = self.tree[2 * node] + self.tree[2 * node + 1]

    def draw(self, chance: Numbers) -> tuple[NDArray[np.int64], Numbers]:
        """Return one place from each slice of the total, with its weight."""
        tree, half, drawn = self.tree, self.half, []
        share = tree[1] / len(chance)
        for number, x in enumerate(chance.tolist()):
            mark, node = (number + x) * share, 1
            while node < half:
                node *= 2
                if mark >= tree[node]:
                    mark -= tree[node]
                    node += 1
            drawn.append(node - half)
        probability = [tree[half + place] / tree[1] for place in drawn]
        weight = [(self.count * p) ** -BETA for p in probability]
        largest = max(weight)
        return np.array(drawn), np.array([w / largest for w in weight])

    def update(self, place: NDArray[np.int64], priority: Numbers) -> None:
        """Give places new priorities."""
        tree = self.tree
        for index, number in zip(place.tolist(), priority.tolist(), strict=True):
            node = index + self.half
            tree[node] = number**ALPHA
            while node > 1:
                node //= 2
                tree[node] = tree[2 * node] + tree[2 * node + 1]


class Scalars:
    """A binary tree in a NumPy array that is read number by number, as in CleanRL.

    With its second tree, of minima, which is kept but not used. In float64, to give the
    same numbers as the others.
    """

    def __init__(self, mass: Numbers) -> None:
        self.count = len(mass)
        self.sums = np.zeros(2 * len(mass) - 1)
        self.minima = np.full(2 * len(mass) - 1, np.inf)
        self.sums[len(mass) - 1 :] = self.minima[len(mass) - 1 :] = mass
        for node in reversed(range(len(mass) - 1)):
            self.sums[node] = self.sums[2 * node + 1] + self.sums[2 * node + 2]
            self.minima[node] = min(self.minima[2 * node + 1 : 2 * node + 3])

    def retrieve(self, mark: float) -> int:
        """Walk down from the root."""
        node = 0
        while node * 2 + 1 < len(self.sums):
            left = node * 2 + 1
            if mark <= self.sums[left]:
                node = left
            else:
                mark -= self.sums[left]
                node = left + 1
        return node - (self.count - 1)

    def draw(self, chance: Numbers) -> tuple[NDArray[np.int64], Numbers]:
        """Return one place from each slice of the total, with its weight."""
        drawn, total = [], self.sums[0]
        segment = total / len(chance)
        for number in range(len(chance)):
            low, high = segment * number, segment * (number + 1)
            drawn.append(self.retrieve(low + (high - low) * chance[number]))
        mass = np.array([self.sums[place + self.count - 1] for place in drawn])
        weight = (self.count * mass / total) ** -BETA
        return np.array(drawn), weight / weight.max()

    def update(self, place: NDArray[np.int64], priority: Numbers) -> None:
        """Give places new priorities."""
        for index, number in zip(place, priority, strict=True):
            for tree, operation in ((self.sums, np.add), (self.minima, min)):
                node = index + self.count - 1
                tree[node] = number**ALPHA
                parent = (node - 1) // 2
                while parent >= 0:
                    left, right = tree[parent * 2 + 1], tree[parent * 2 + 2]
                    tree[parent] = (
                        left + right if operation is np.add else min(left, right)
                    )
                    parent = (parent - 1) // 2


class Plain:
    """No tree: all masses are added up anew for each batch."""

    def __init__(self, mass: Numbers) -> None:
        self.mass = mass.copy()

    def draw(self, chance: Numbers) -> tuple[NDArray[np.int64], Numbers]:
        """Return one place from each slice of the total, with its weight."""
        ends = self.mass.cumsum()
        mark = (np.arange(len(chance)) + chance) * (ends[-1] / len(chance))
        # Rounding may place a mark at the last end.
        place = np.searchsorted(ends[:-1], mark, side="right")
        probability = torch.from_numpy(self.mass[place] / ends[-1])
        return place, importance_weights(probability, len(ends), BETA).numpy()

    def update(self, place: NDArray[np.int64], priority: Numbers) -> None:
        """Give places new priorities."""
        self.mass[place] = priority**ALPHA


class Groups:
    """This package's ``SumTree``, as ``ReplayBuffer`` uses it."""

    def __init__(self, mass: Numbers, branching: int = 16, root: int = 4096) -> None:
        self.count, self.tree = len(mass), SumTree(len(mass), branching, root)
        self.tree.update(np.arange(len(mass)), mass)

    def draw(self, chance: Numbers) -> tuple[NDArray[np.int64], Numbers]:
        """Return one place from each slice of the total, with its weight."""
        total = self.tree.total
        mark = (np.arange(len(chance)) + chance) * (total / len(chance))
        place = self.tree.find(mark)
        probability = torch.from_numpy(self.tree.mass[place] / total)
        return place, importance_weights(probability, self.count, BETA).numpy()

    def update(self, place: NDArray[np.int64], priority: Numbers) -> None:
        """Give places new priorities."""
        self.tree.update(place, priority**ALPHA)


KINDS: dict[str, Callable[[Numbers], Memory]] = {
    "lists": Lists,
    "CleanRL's form": Scalars,
    "cumulative sum": Plain,
    "SumTree, pairs": partial(Groups, branching=2, root=2),
    "SumTree": Groups,
}


def turn(memory: Memory, chance: Numbers, priority: Numbers) -> None:
    """Draw a batch and give it new priorities."""
    place, _ = memory.draw(chance)
    memory.update(place, priority)


def checked(kind: str, mass: Numbers, batch: int) -> Memory:
    """Make a memory; raise unless it draws and weighs right for twenty turns."""
    memory, mass = KINDS[kind](mass), mass.copy()
    rng, count = np.random.default_rng(SEED), len(mass)
    # The leaves of CleanRL's form lie in the order of its lowest level, then of the one
    # above it. That changes which mark leads where, not how likely a place is.
    lowest = (1 << (2 * count - 1).bit_length() - 1) - 1
    first = (lowest - (count - 1)) % count if kind == "CleanRL's form" else 0
    for _ in range(20):
        chance, priority = rng.random(batch), rng.random(batch)
        place, weight = memory.draw(chance)
        ends = np.roll(mass, -first).cumsum()
        mark = (np.arange(batch) + chance) * (ends[-1] / batch)
        expected = (np.searchsorted(ends, mark, side="right") + first) % count
        np.testing.assert_array_equal(place, expected, kind)
        raw = (count * mass[expected] / ends[-1]) ** -BETA
        np.testing.assert_allclose(weight, raw / raw.max(), rtol=1e-9, err_msg=kind)
        memory.update(place, priority)
        mass[place] = priority**ALPHA
    return memory


def case(name: str, kinds: list[str], entries: int, batch: int, **goals: float) -> Case:
    """Return a case whose first kind is the peer of the others."""
    rng = np.random.default_rng(SEED)
    mass, chance, priority = rng.random(entries), rng.random(batch), rng.random(batch)
    memories = {kind: checked(kind, mass, batch) for kind in kinds}
    return Case(
        name=name,
        functions={k: partial(turn, m, chance, priority) for k, m in memories.items()},
        peer=kinds[0],
        goals={kind: Goal(at_least=number) for kind, number in goals.items()},
    )


def cases() -> Iterator[Case]:
    """Yield batches of many sizes, and then memories of many sizes."""
    beside_lists = {32: 1.0, 64: 2.0, 256: 4.0, 1024: 4.0}
    beside_scalars = {32: 8.0, 64: 20.0, 256: 20.0, 1024: 20.0}
    for batch in BATCHES:
        kinds: tuple[str, ...] = (
            "lists",
            "cumulative sum",
            "SumTree, pairs",
            "SumTree",
        )
        goal = beside_lists[batch]
        yield case(
            f"{ENTRIES} entries, B = {batch}", kinds, ENTRIES, batch, SumTree=goal
        )
    for batch in BATCHES:
        kinds, goal = ["CleanRL's form", "SumTree"], beside_scalars[batch]
        name = f"{ENTRIES} entries, B = {batch}, beside CleanRL's form"
        yield case(name, kinds, ENTRIES, batch, SumTree=goal)
    for entries in SIZES:
        kinds = ["cumulative sum", "SumTree, pairs", "SumTree"]
        yield case(f"B = 64, {entries} entries", kinds, entries, 64)
