"""NVFP4 experts: e2m1 weights with an e4m3 scale per 16 inputs; docs/kernels/nvfp4-format.md states the arithmetic."""
