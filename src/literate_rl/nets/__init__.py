"""Encoders, masks, action distributions and policies."""
