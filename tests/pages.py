"""A page that shows some widgets, for tests that open them in a browser."""

from typing import Any


def document(*items: Any) -> str:
    """Return a page that shows some pictures, as an exported notebook does."""
    style = (
        "body { font: 16px/1.5 system-ui, sans-serif; margin: 16px; max-width: 46rem;"
        " color: #1a2332; background: #fffdf9 }"
        "@media (prefers-color-scheme: dark) {"
        " body { color: #ced6dd; background: #14181e } }"
    )
    cells = "".join(f"<div>{item._repr_html_()}</div>" for item in items)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Pictures</title>'
        f"<style>{style}</style></head><body><main><h1>Pictures</h1>{cells}</main>"
        "</body></html>"
    )
