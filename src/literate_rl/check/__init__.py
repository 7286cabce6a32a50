"""Contracts that somebody else's model keeps, and policies made of such models."""
