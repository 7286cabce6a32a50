"""The page of the package: each module once, its first names, and its example."""

import re
from importlib import import_module

import numpy as np
import reference
from order import read_order
from tangle import ROOT, home_of

PAGE = (ROOT / reference.PAGE).read_text("utf-8")
MODULES = [chapter.name for chapter in read_order() if chapter.kind != "evidence"]


def test_each_module_stands_in_one_group():
    assert sorted(module for module, _ in reference.grouped()) == sorted(MODULES)


def test_the_first_names_are_public_in_their_modules():
    for module, names in reference.grouped():
        module = home_of(module)
        known = import_module(f"literate_rl.{module}").__all__
        assert names, module
        assert set(names) <= set(known), module


def test_the_example_trains_an_agent_that_can_be_loaded(tmp_path, monkeypatch, capsys):
    [example] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert "total_steps=50_000" in example
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(example.replace("50_000", "1_000"), names)
    mean = float(capsys.readouterr().out.split()[-1])
    again = names["load"]("my_agent")
    returns = names["evaluate"](again, names["agent"].env, episodes=20)
    assert float(np.mean(returns)) == mean
