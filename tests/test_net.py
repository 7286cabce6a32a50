"""Refactorings change nothing: short trainings come to what they came to before."""

import json

import pytest
import torch
from net import NAMES, RECORD, boil_down, play


@pytest.mark.parametrize("name", NAMES)
def test_a_short_training_comes_to_what_was_recorded(name: str) -> None:
    recorded, now = json.loads(RECORD.read_text())[name], play(name)
    assert now.keys() == recorded.keys()
    for part, numbers in now.items():
        # Another processor rounds differently, and three updates carry that on.
        torch.testing.assert_close(
            torch.tensor(numbers, dtype=torch.float64),
            torch.tensor(recorded[part], dtype=torch.float64),
            rtol=1e-4,
            atol=3e-4,
            msg=lambda text, part=part: f"{part}: {text}",
        )


def test_the_numbers_notice_a_change_of_one_weight() -> None:
    weight = torch.zeros(3, 4)
    before = boil_down([weight])
    weight[1, 2] = 0.01
    assert boil_down([weight]) != before
