"""Release: refuse to build a package whose version is not told the same everywhere.

``python docs/_ext/release.py [TAG]`` compares the versions in pyproject.toml, in
CITATION.cff and on the page that says how to cite. With a tag, such as ``v0.2.0``, it
must be that version, and the changelog must have a heading for it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version that each file tells."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    patterns = {
        "CITATION.cff": r"^version: (\S+)$",
        "docs/start.md": r"^  version = \{(\S+)\},$",
    }
    told = {"pyproject.toml": project["version"]}
    for name, pattern in patterns.items():
        found = re.search(pattern, (root / name).read_text("utf-8"), re.MULTILINE)
        told[name] = found[1] if found else "none"
    return told


def problems(tag: str = "", root: Path = ROOT) -> Iterator[str]:
    """Yield what keeps a version from being released."""
    told = versions(root)
    version = told["pyproject.toml"]
    for name, other in told.items():
        if other != version:
            yield f"{name} says version {other}, pyproject.toml says {version}"
    if not tag:
        return
    if tag != f"v{version}":
        yield f"the tag {tag} does not fit version {version}"
    changes = (root / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"^## {re.escape(version)}\b", changes, re.MULTILINE):
        yield f"CHANGELOG.md has no heading '## {version}'"


if __name__ == "__main__":
    sys.exit("\n".join(problems(*sys.argv[1:])) or None)
