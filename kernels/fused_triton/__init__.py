"""`fused_triton`: our fused MoE in Triton. `op.py` is the host side, `_sort.py` and `_op.py` the kernels."""
