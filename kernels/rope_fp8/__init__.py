"""Rotary embedding and FP8 quantization per head in one launch: `op.py` on the host, `_op.py` the kernel."""
