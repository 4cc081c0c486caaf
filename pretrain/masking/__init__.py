"""Draw masks: which tokens, what replaces them, and at what rate.

Each mask is keyed by seed and position (Philox), so that every step draws new ones and any step can be repeated.
`gpu_masking` is the Triton kernel that draws the same masks on a GPU.
"""
