"""Growth: the program of the first pages, step by step, and its curves."""

from itertools import pairwise

import pytest
from check import ROOT
from weave import added, program_of

from literate_rl.apps.commands import main
from literate_rl.apps.programs import STEPS, copied, source
from literate_rl.book.growth import NAMES, grown, runs_of


def test_each_page_adds_a_few_lines():
    pages = [program_of(ROOT / f"chapters/{name}.py") for name in STEPS]
    for before, after in pairwise(pages):
        assert 5 < len(added(before, after)) <= 26


def test_a_line_that_only_moved_is_not_new():
    assert added("a\nb\n", "a\nfor x in y:\n    b\n") == {1}
    assert added("a\n", "a\n") == set()


@pytest.mark.parametrize("step", range(1, len(STEPS) + 1))
def test_copy_prints_each_step(step, capsys):
    main(["copy", "ppo", "--step", str(step)])
    assert capsys.readouterr().out == copied(STEPS[step - 1])


def test_only_ppo_has_steps():
    with pytest.raises(SystemExit, match="for ppo: only that grows in steps"):
        main(["copy", "sac", "--step", "2"])


@pytest.mark.parametrize("name", STEPS)
def test_the_file_so_far_is_that_of_the_page(name):
    page = program_of(ROOT / f"chapters/{name}.py")
    lines = [line for line in page.splitlines() if "{eq}" not in line]
    shown = repr(source(name))
    assert all(line in shown for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_twenty_seeds_are_stored(name):
    assert runs_of(name).curves.shape[0] == 20


def test_the_picture_has_a_line_for_each_page_and_seed():
    picture = grown("advantages").svg()
    assert picture.count("<path") > 20 + 2
    for name in STEPS[:3]:
        assert NAMES[name] in picture
    assert NAMES["ppo"] not in picture
