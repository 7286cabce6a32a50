"""The questions: their programs run, and exported agents act as they did."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from literate_rl import load, trained_agents

pytestmark = pytest.mark.filterwarnings("ignore::Warning:torch.jit", "ignore:Conv")
PAGE = (Path(__file__).parents[1] / "docs/faq.md").read_text("utf-8")
# The first one, of `predict`, has its test in `test_predict`.
_, LOOP, POOL, EARLY, EXPORT = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


def names_of(program: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, "docs/faq.md", "exec"), names)
    return names


def test_a_loop_over_settings_keeps_a_table():
    table = names_of(LOOP.replace("2_048", "512"))["table"]
    assert [row["seed"] for row in table] == [1, 2, 1, 2]
    assert len({row["rate"] for row in table}) == 2
    assert all(row["return"] > 0 for row in table)


def test_processes_that_are_spawned_come_to_the_numbers_of_one(tmp_path):
    script = tmp_path / "sweep.py"
    program = POOL.replace("2_048", "512").replace("Pool(2)", "Pool(1)")
    script.write_text(program)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    score = names_of(program)["score"]
    assert done.stdout == f"{[score(1), score(2)]}\n"


def test_the_loop_by_hand_stops_early():
    names = names_of(EARLY)
    assert 0 < names["learner"].step < names["settings"].total_steps


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    return names_of(EXPORT)


def test_the_exported_agents_of_the_page_act_as_the_agent(page):
    obs = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    action = page["greedy"](obs)
    assert torch.equal(page["traced"](obs), action)
    assert torch.equal(page["exported"](obs), action)
    policy = page["greedy"].policy
    assert (policy.to_env(action.detach()) != action.detach().numpy()).any()


def test_an_agent_of_each_kind_can_be_exported(page):
    kinds = {policy.recipe[0]: policy for policy in map(load, trained_agents())}
    for policy in kinds.values():
        space = policy.recipe[1]["observation_space"]
        size = space.get("n") or space["shape"][0]
        generator = torch.Generator().manual_seed(1)
        two, five = (torch.randn(x, size, generator=generator) for x in (2, 5))
        greedy = page["Greedy"](policy)
        exported = torch.export.export(greedy, (two,), dynamic_shapes=page["rows"])
        forms = [torch.jit.trace(greedy, two), exported.module()]
        forms.append(torch.compile(greedy, backend="eager"))
        for form in forms:
            assert torch.equal(form(five), greedy(five))
