"""Measuring: workers that own the GPU, paired timing on CUDA graphs, checks, replay of recorded evidence."""
