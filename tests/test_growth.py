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


def test_copy_prints_a_step_of_ppo(capsys):
    main(["copy", "ppo", "--step", "2"])
    assert capsys.readouterr().out == copied(STEPS[1])
    with pytest.raises(SystemExit, match="for ppo: only that grows in steps"):
        main(["copy", "sac", "--step", "2"])


@pytest.mark.parametrize("name", STEPS)
def test_the_file_so_far_is_that_of_the_page(name):
    page = program_of(ROOT / f"chapters/{name}.py")
    lines = [line for line in page.splitlines() if "{eq}" not in line]
    shown = repr(source(name))
    assert all(line in shown for line in lines)


def test_the_picture_has_a_line_for_each_page_and_twenty_seeds():
    assert {len(runs_of(name).curves) for name in NAMES} == {20}
    picture = grown("advantages").svg()
    assert picture.count("<path") > 20 + 2
    for name in STEPS[:3]:
        assert NAMES[name] in picture
    assert NAMES["ppo"] not in picture
