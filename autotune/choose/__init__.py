"""Choosing: what to try next, and a pure function from evidence to routes."""
