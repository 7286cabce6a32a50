"""The algorithms: on-policy ones on a runner, off-policy ones in a loop."""
