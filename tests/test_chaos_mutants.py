"""The mutants: each is one change that compiles, and the list of equivalent ones."""

import ast
import random

import pytest

from benchmarks import chaos_mutants
from benchmarks.chaos_mutants import all_mutants, functions_of, path_of, trials

MUTANTS = all_mutants()


def test_each_mutant_is_another_program_and_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 1000
    for mutant in random.Random(0).sample(MUTANTS, 12):
        original = path_of(mutant.place.module).read_text()
        before, after = (ast.dump(ast.parse(x)) for x in (original, mutant.text()))
        assert before != after, mutant.name
        assert original.count("\n") >= mutant.line


def test_all_places_exist_and_each_has_mutants() -> None:
    for place in chaos_mutants.PLACES:
        functions = functions_of(ast.parse(path_of(place.module).read_text()))
        assert functions.keys() >= set(place.functions.split())
        assert any(mutant.place == place for mutant in MUTANTS)


def test_every_kind_of_change_is_made() -> None:
    changes = {mutant.name.partition(": ")[2] for mutant in MUTANTS}
    assert {
        "value.detach() -> value",
        "0.99 -> 0.495",
        "~(terminated | truncated) -> (terminated | truncated)",
        "torch.min(unclipped, clipped) -> torch.max(unclipped, clipped)",
        "adv < 0 -> adv <= 0",
        "reward + gamma * future - value -> (reward + gamma * future + value)",
        "torch.where(terminated, 0.0, next_value) -> "
        "torch.where(terminated, next_value, 0.0)",
        "1: -> :-1",
    } <= changes


def test_a_listed_mutant_that_is_gone_is_noticed(monkeypatch) -> None:
    chaos_mutants.check_the_list()
    monkeypatch.setitem(chaos_mutants.EQUIVALENT, "advantages.gae: 1 -> 2", "it is not")
    with pytest.raises(ValueError, match=r"not there any more.*advantages.gae: 1 -> 2"):
        trials(0, 1)


def test_a_mutant_changes_one_line() -> None:
    old = "td_error[t] + passed_on[t] * advantage"
    name = f"advantages.gae_loop: {old} -> ({old.replace('+', '-')})"
    (mutant,) = (x for x in MUTANTS if x.name == name)
    lines = (path_of("advantages").read_text(), mutant.text())
    pairs = list(zip(*(x.splitlines() for x in lines), strict=True))
    changed = [row for row, (x, y) in enumerate(pairs, 1) if x != y]
    assert changed == [mutant.line]
    assert f"advantage = {old}" in pairs[mutant.line - 1][0]
