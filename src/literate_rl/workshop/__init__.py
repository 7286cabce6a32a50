"""The workshop: what the chapters of the path stand on, and what stands on them.

Nobody has to read it to follow the path. Each module is a chapter too.
"""
