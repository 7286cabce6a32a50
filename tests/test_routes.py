"""Routes: ways through the book, on which each chapter has what it needs before it."""

import re

import pytest
from order import read_order
from routes import Route, onward, read_routes

ROUTES = read_routes()
NEEDS = re.compile(r"You need (.*?)\.(?:\s|$)", re.DOTALL)


def needed(route: Route, position: int) -> set[str]:
    """Return the chapters of the path that a chapter's opening says one needs."""
    chapter = route.chapters[position]
    opening = " ".join(chapter.source[:3500].replace("\n#", " ").split())
    found = NEEDS.search(opening)
    return set(re.findall(r"\{doc\}`(\w+)`", found[1])) if found else set()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.anchor)
def test_a_route_goes_forward_and_its_minutes_are_told(route):
    order = [chapter.docname for chapter in read_order()]
    places = [order.index(chapter.docname) for chapter in route.chapters]
    assert places == sorted({*places})
    assert all(chapter.minutes for chapter in route.chapters)
    assert route.minutes == sum(chapter.minutes or 0 for chapter in route.chapters)


# What a chapter needs and says itself in a sentence, so that its route can do without.
LATER = {
    "ppg_evidence": "evaluation",
    "ppo_evidence": "evaluation",
    "sac": "contract_models",
}


# The last two are for those who know the algorithms.
@pytest.mark.parametrize("route", ROUTES[:-2], ids=lambda route: route.anchor)
def test_what_a_chapter_needs_stands_before_it_on_its_route(route):
    names = [chapter.name for chapter in route.chapters]
    for position, name in enumerate(names):
        allowed = {*names[:position], LATER.get(name)}
        assert needed(route, position) <= allowed, name


def test_where_it_goes_on():
    a, b, c = read_order()[:3]
    routes = [
        Route("One", "", (a, b)),
        Route("Two", "", (a, c)),
        Route("3", "", (a, b)),
    ]
    assert onward(a.docname, routes) == {b.docname: ["One", "3"], c.docname: ["Two"]}
    assert onward(c.docname, routes) == {"": ["Two"]}
