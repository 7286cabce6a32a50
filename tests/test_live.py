"""The bounds that pages hold their trainings to are passed by twenty other seeds."""

import pytest

from benchmarks import live
from benchmarks.store import read_table


@pytest.mark.parametrize("page", live.LIVE)
def test_twenty_seeds_pass_the_bound_of_a_page(page):
    number, bound = live.LIVE[page]
    text = (live.CHAPTERS / f"{page}.py").read_text("utf-8")
    assert text.count(f"\nassert {number} {bound}") == 1
    rows = [row for row in read_table(live.FILE)[0] if row["page"] == page]
    assert [int(row["seed"]) for row in rows] == list(live.SEEDS)
    assert all(eval(f"{float(row['number'])} {bound}") for row in rows)


def test_a_page_runs_up_to_its_bound_with_other_seeds(tmp_path, monkeypatch):
    page = """
# %% tags=["export"]
def half(x):
    return x / 2


# %%
rng = {"seed": 5}
again = dict(seed=5)
# %% tags=["claims"]
assert rng["seed"] == 5, "which holds for the page alone"
# %% tags=["claims"]
assert half(rng["seed"] + again["seed"]) > 4, "as a page says it"
"""
    (tmp_path / "page.py").write_text(page)
    monkeypatch.setattr(live, "CHAPTERS", tmp_path)
    monkeypatch.setitem(live.LIVE, "page", ('half(rng["seed"] + again["seed"])', "> 4"))
    assert live.run("page", 0) == 5
    assert live.run("page", 3) == 305
    monkeypatch.setitem(live.LIVE, "page", ("half(1)", "> 4"))
    with pytest.raises(ValueError, match="does not say"):
        live.run("page", 1)
