"""What all tests share."""

import os
import sys
from pathlib import Path

from hypothesis import settings

# The tangler and the weaver are no package: Sphinx finds them here, and so do tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs/_ext"))

# Small tensors: threads would only wait for each other. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, and no verdict that depends on a machine's speed.
settings.register_profile("repository", deadline=None, derandomize=True)
settings.load_profile("repository")
