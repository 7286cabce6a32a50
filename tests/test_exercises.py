"""Exercises: an answer is right if it gives the same, and the verdict is one line."""

import numpy as np
import pytest
import torch

from literate_rl.book.exercises import grade


def double(x):
    return 2 * x


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (double, "Right: all 2 cases agree."),
        (lambda x: x + 1, "Not yet: answer(3) gave 4, expected 6."),
        (lambda x: ..., "Not yet: the answer is still empty."),
        (lambda x: None, "Not yet: answer(1) gave None, expected 2."),
        (lambda x: [2], "answer(1) gave [2], expected 2: shape [1], not []."),
        (lambda x: x / 0, "answer(1) raised ZeroDivisionError: division by zero"),
    ],
)
def test_grade_prints_one_line(answer, line, capsys):
    assert grade(answer, double, (1,), (3,)) is None
    printed = capsys.readouterr().out
    assert line in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("got", "wanted", "right"),
    [
        (torch.ones(3, requires_grad=True), np.ones(3), True),
        (torch.ones(3) + 1e-7, torch.ones(3), True),
        (torch.ones(3) + 1e-2, torch.ones(3), False),
        (torch.ones(3, 1), torch.ones(3), False),
        (torch.tensor(torch.nan), torch.tensor(torch.nan), True),
        ((1.0, [2.0]), (1.0, [2.0]), True),
        ((1.0,), (1.0, 2.0), False),
        (np.array(["b"]), "b", False),
    ],
)
def test_grade_compares_values_and_shapes(got, wanted, right, capsys):
    grade(lambda: got, lambda: wanted, ())
    assert capsys.readouterr().out.startswith("Right" if right else "Not yet")


def said(capsys, got, wanted):
    grade(lambda: got, lambda: wanted, ())
    return capsys.readouterr().out.strip()


def test_a_verdict_names_the_first_entry_that_differs(capsys):
    wanted = torch.full((4, 4), 0.74)
    got = wanted.clone()
    got[1, 2:] = 0.75
    got[3, 0] = torch.nan
    text = said(capsys, got, wanted)
    words = "differs in 3 of 16 entries, first at [1, 2]: 0.75 instead of 0.74."
    assert text == f"Not yet: answer() {words}"
    parts = said(capsys, (wanted, got), (wanted, wanted))
    assert parts == f"Not yet: answer() {words[:-1]} (result 1)."


def test_a_verdict_is_short_and_shows_a_difference(capsys):
    text = said(capsys, torch.zeros(9, 9), torch.zeros(9, 10))
    assert len(text) < 190
    assert text.endswith(" …: shape [9, 9], not [9, 10].")


def test_a_case_may_have_a_name(capsys):
    grade(lambda x: x + 1, double, {"one": (1,), "two": (2,)})
    line = "Not yet: the answer to 'two' gave 3, expected 4.\n"
    assert capsys.readouterr().out == line
