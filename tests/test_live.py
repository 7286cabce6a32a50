"""What pages train while they run holds for twenty seeds, and the file is fresh."""

import ast

import pytest

from benchmarks import live
from benchmarks.store import read_table

PAGE = """# %% [markdown]
# # A page

# %% tags=["export"]
def half(x):
    return x / 2


# %%
unrelated = [1]
shown = len(unrelated)

# %%
import random

rng = random.Random()
rng.seed(5)
settings = {"seed": 5, "size": 1}


def drawn(seed):
    return seed


first = drawn(seed=5)

# %% tags=["claims"]
assert half(settings["seed"]) + half(first) >= 5, "at least five"

# %% tags=["claims"]
assert shown == 1
"""
CLAIM = "half(settings['seed']) + half(first)"


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "CHAPTERS", tmp_path)
    live.cells_of.cache_clear()
    (tmp_path / "page.py").write_text(PAGE)
    yield "page"
    live.cells_of.cache_clear()


def test_a_claim_is_run_with_what_it_stands_on_and_with_other_seeds(page):
    text = "\n".join(ast.unparse(cell.tree) for cell in live.behind(page, CLAIM))
    assert "def half" in text
    assert "settings" in text
    assert "unrelated" not in text
    assert live.run(page, CLAIM, 0) == 5
    assert live.run(page, CLAIM, 3) == 305


def test_the_claim_itself_must_hold(page):
    with pytest.raises(AssertionError, match="at least five"):
        live.run(page, CLAIM, -1)


def test_what_no_claim_says_is_refused(page):
    with pytest.raises(ValueError, match="0 cells of claims say 'rng', not 1"):
        live.behind(page, "rng")


@pytest.mark.parametrize(
    ("page", "claim"), [(page, x) for page, claims in live.LIVE.items() for x in claims]
)
def test_each_claim_was_held_to_twenty_seeds_as_it_stands(page, claim):
    """If it was not: ``python -m benchmarks.live``."""
    rows = [
        row
        for row in read_table(live.FILE)[0]
        if (row["page"], row["claim"]) == (page, claim)
    ]
    assert {row["cells"] for row in rows} == {
        live.fingerprint(live.behind(page, claim))
    }
    assert sorted(int(row["seed"]) for row in rows) == list(live.SEEDS)
