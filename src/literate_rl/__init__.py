"""Literate RL: deep reinforcement learning, line by line."""
