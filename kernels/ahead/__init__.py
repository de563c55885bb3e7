"""Compiling Triton variants ahead of their first launch: which ones, in which processes."""
