"""Runs on disk, what plays them, and evaluation."""
