"""Experiments in live vLLM: baseline against treatment, in turns, in rounds."""
