"""The old address of ``literate_rl.workshop.hybrid_policy``."""

from literate_rl.workshop.hybrid_policy import HybridActions, make_hybrid_policy

__all__ = ["HybridActions", "make_hybrid_policy"]
