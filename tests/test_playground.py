"""The agent in the page: its script against Gymnasium and torch, and in a browser."""

import json
import re
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from py_mini_racer import MiniRacer
from torch import nn
from worlds import left_alone, moody

from literate_rl.book import pictures, playground
from literate_rl.book.pictures import Widget
from literate_rl.book.playground import PUSH, play, push_cartpole, rounded


def networks() -> tuple[nn.Sequential, nn.Sequential]:
    """Return an actor that balances the pole and a critic with hidden layers."""
    torch.manual_seed(1)
    actor = nn.Sequential(nn.Linear(4, 2, bias=True))
    with torch.no_grad():
        to_right = torch.tensor([0.1, 0.2, 2.0, 0.6])
        actor[0].weight.copy_(torch.stack([-to_right, to_right]))
        actor[0].bias.zero_()
    layers = nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    return actor, nn.Sequential(*layers)


@pytest.fixture(scope="module")
def widget() -> Widget:
    """Return the widget of these two."""
    return push_cartpole(*networks())


@pytest.fixture
def script() -> Iterator[MiniRacer]:
    """Return an engine for scripts; it must be closed, or the tests never end."""
    context = MiniRacer()
    yield context
    context.close()


# --- The script's mathematics ---------------------------------------------------------


def test_the_physics_is_that_of_gymnasium(script):
    script.eval(pictures.script("cartpole"))
    env: Any = gym.make("CartPole-v1").unwrapped
    env.reset(seed=1)
    # Nothing ends this game: it sees far more than an episode does.
    rng = np.random.default_rng(1)
    for _ in range(500):
        before = rng.normal(0, [2, 2, 1, 3])
        env.state, action = before, int(rng.integers(2))
        env.reset_steps = env.steps_beyond_terminated = None
        env.step(action)
        call = f"JSON.stringify(physics({before.tolist()}, {20 * action - 10}))"
        after = json.loads(script.eval(call))
        np.testing.assert_allclose(after, env.state, rtol=1e-6, atol=1e-12)


def test_the_networks_are_those_of_torch(script):
    script.eval(pictures.script("cartpole"))
    actor, critic = map(rounded, networks())
    for network in (actor, critic):
        text = json.dumps(playground.layers(network))
        states = torch.randn(500, 4, dtype=torch.float64)
        call = f"""JSON.stringify({states.tolist()}.map(state =>
          forward({text}, state).at(-1)))"""
        # The weights are those that are written: four digits, which float64 holds.
        exact = network.double()
        with torch.no_grad():
            for weight in exact.parameters():
                weight.detach().apply_(playground.four_digits)
            wanted = exact(states)
        found = torch.tensor(json.loads(script.eval(call)), dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-12)


def test_a_network_that_the_script_cannot_compute_is_an_error():
    actor, critic = networks()

    class Linear(nn.Linear):
        """A layer with the name of PyTorch's."""

    class Opposite(nn.Sequential):
        def forward(self, x):
            return -super().forward(x)

    hooked = nn.Sequential(nn.Linear(4, 1))
    hooked[0].register_forward_hook(lambda module, inputs, output: -output)
    for wrong in (
        nn.Sequential(Linear(4, 1)),
        Opposite(nn.Linear(4, 1)),
        hooked,
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)),
        nn.Sequential(nn.Linear(4, 1), nn.Tanh()),
        nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)),
    ):
        with pytest.raises(ValueError, match=r"must be Linear, Tanh|without hooks"):
            push_cartpole(actor, wrong)
    assert playground.layers(critic)


def test_a_game_leaves_modes_and_moments_alone():
    actor, critic = moody(4, 2), moody(4, 1)
    with left_alone(actor), left_alone(critic):
        assert play(actor, critic, {}) == play(actor, critic, {})


# --- The game in Gymnasium ------------------------------------------------------------


def test_a_push_turns_the_pole_at_its_step_and_a_hard_one_ends_the_episode():
    plain, pushed = (play(*networks(), p, 30) for p in ({}, {20: PUSH}))
    assert plain.states[:20] == pushed.states[:20]
    before, after = plain.states[20], pushed.states[20]
    assert after == pytest.approx([*before[:3], before[3] + PUSH])
    hard = play(*networks(), {20: 10.0})
    assert hard.fell
    assert 20 < len(hard.values) < 30


def test_a_game_without_a_push_is_that_of_gymnasium():
    actor, critic = networks()
    played = play(actor, critic, {}, num_steps=50, seed=3)
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=3)
    for state, value in zip(played.states, played.values, strict=True):
        np.testing.assert_allclose(state, obs, rtol=1e-5, atol=1e-7)
        row = torch.as_tensor(obs)
        assert value == pytest.approx(critic(row).item(), abs=1e-5)
        obs, *_ = env.step(int(actor(row).argmax()))
    assert len(played.values) == 50
    assert not played.fell


# --- In a browser ---------------------------------------------------------------------


def drawing(page: Page) -> list[str | None]:
    """Return where cart and pole stand, the line and the dots."""
    figure = page.locator("figure.lr-play")
    scene = [
        mark.get_attribute("transform") for mark in figure.locator(".lr-moves").all()
    ]
    paths = figure.locator("svg").last.locator("path").all()[-2:]
    return scene + [path.get_attribute("d") for path in paths]


CHANGED = "before => document.querySelector('figure').outerHTML !== before"


def test_it_plays_by_itself_once_it_is_seen(show, widget):
    page = show(widget, reduced_motion="no-preference")
    page.evaluate("document.querySelector('main').style.paddingTop = '3000px'")
    page.wait_for_timeout(500)
    still = drawing(page)
    page.wait_for_timeout(300)
    assert drawing(page) == still
    before = page.locator("figure").evaluate("figure => figure.outerHTML")
    page.locator("figure").scroll_into_view_if_needed()
    page.wait_for_function(CHANGED, arg=before)


def test_keys_and_buttons_push_pause_and_go_on(show, widget):
    page = show(widget, reduced_motion="reduce")
    still = drawing(page)
    page.wait_for_timeout(500)
    assert drawing(page) == still, "for those who ask for it"
    page.keyboard.press("Tab")
    expect(page.locator("figure")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.get_by_role("button", name="Start again").click()
    page.get_by_role("button", name="Pause").click()
    for way in ("left", "right"):
        dots = drawing(page)[-1] or ""
        page.get_by_role("button", name=f"Push {way}").click()
        line = page.locator("figure svg").last.locator("path").last
        expect(line).not_to_have_attribute("d", dots)


def test_enough_pushes_end_an_episode_and_another_begins(show, widget):
    page = show(widget, reduced_motion="reduce")
    # All in one moment: the cart has no time to get under the pole.
    page.get_by_role("button", name="Push left").evaluate(
        "button => { for (let i = 0; i < 12; i++) button.click(); }"
    )
    words = page.locator("output")
    expect(words).to_contain_text(re.compile(r"The last episode ended after \d+ steps"))
    expect(words).to_contain_text("the pole leaned too far")
    page.wait_for_timeout(1500)
    scene = drawing(page)
    assert "NaN" not in str(scene)
    lean = float(re.findall(r"rotate\((-?[\d.]+)", str(scene[2]))[0])
    assert abs(lean) < 45


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_is_accessible_and_shows_a_game_on_paper(show, widget, width, scheme):
    page = show(widget, width=width, color_scheme=scheme, reduced_motion="reduce")
    found = Axe().run(page).response["violations"]
    assert [rule["id"] for rule in found] == []
    root = page.locator("html")
    assert root.evaluate("root => root.scrollWidth - root.clientWidth") <= 0
    page.emulate_media(media="print")
    for paper in (page, show(widget, java_script_enabled=False)):
        expect(paper.locator(".lr-controls")).to_be_hidden()
        assert all(drawing(paper))
    expect(paper.locator("output")).to_contain_text("It was pushed once at step 100")
