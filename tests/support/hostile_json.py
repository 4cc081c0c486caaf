"""JSON values that Python's reader refuses, or accepts although later code fails on them."""

NESTED = "[" * 100_000 + "]" * 100_000
SURROGATE = r'"\ud800"'
DIGITS = "9" * 5000  # of an integer; Python converts 4,300
HOSTILE = {"nested": NESTED, "surrogate": SURROGATE, "digits": DIGITS}
DEEPEST = "[" * 1000 + "]" * 1000  # that orjson reads: deeper than Python's stack, less deep than orjson's bound
