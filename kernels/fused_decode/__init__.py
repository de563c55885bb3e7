"""`fused_decode`: our decode kernel, for few tokens. `op.py` is the host side, `_op.py` the kernels."""
