"""Environments, what collects experience in them, and what keeps it."""
