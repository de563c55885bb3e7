"""moe-autotune: finds, keeps and applies the fastest correct way to run fused mixture-of-experts layers."""

__version__ = "0.1.0"
