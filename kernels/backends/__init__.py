"""Backends behind one protocol. Only `registry.py` knows all of them."""
