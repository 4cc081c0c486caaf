"""Reference optimizers on whole parameters: plain loops in fp64, written from the papers."""

import re
from typing import Any

import numpy as np

MATRIX = r"(.*\.)?(qkv|attention_out|mlp_in|mlp_out|head_dense)\.weight"
EMBEDDING = r"(word|position|type|output)_embedding"
LR, BETAS, EPS, DECAY, MOMENTUM, STEPS, AVERAGING = 0.05, (0.8, 0.9), 1e-4, 0.3, 0.9, 5, 0.7
SETTINGS = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY, "grad_clip": 0.0, "ema": AVERAGING}
NAMES = ("adamw", "lamb", "stable_adamw", "muon")


def settings(name: str) -> dict[str, Any]:
    """The section `optim` of a config."""
    return {"name": name, **SETTINGS} | ({"muon": {"momentum": MOMENTUM}} if name == "muon" else {})


class Reference:
    """Args:
    name: of the optimizer.
    weights: of each parameter of an Encoder before the first step.
    stacked: rows of the matrices in a parameter, by the name of its layer (EncoderShape.stacked).
    """

    def __init__(self, name: str, weights: dict[str, np.ndarray], stacked: dict[str, tuple[int, ...]]):
        self.name, self.stacked = name, stacked
        self.weights = {key: value.astype(np.float64) for key, value in weights.items()}
        self.average = dict(self.weights)
        self.moments = {key: (np.zeros(v.shape), np.zeros(v.shape)) for key, v in self.weights.items()}
        self.steps = 0

    def step(self, gradients: dict[str, np.ndarray]) -> None:
        self.steps += 1
        for key, gradient in gradients.items():
            g = gradient.astype(np.float64)
            decay = DECAY if re.fullmatch(MATRIX, key) else 0.0
            if self.name == "muon" and decay:
                self.weights[key] = self._muon(key, g, decay)
            else:
                self.weights[key] = self._adam(key, g, decay)
            self.average[key] = AVERAGING * self.average[key] + (1 - AVERAGING) * self.weights[key]

    def _adam(self, key: str, g: np.ndarray, decay: float) -> np.ndarray:
        w, (m, v), (b1, b2) = self.weights[key], self.moments[key], BETAS
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        self.moments[key] = m, v
        m_hat, v_hat = m / (1 - b1**self.steps), v / (1 - b2**self.steps)
        update = m_hat / (np.sqrt(v_hat) + EPS) + decay * w
        if self.name == "lamb" and (decay or re.fullmatch(EMBEDDING, key)):
            update *= np.linalg.norm(w) / np.linalg.norm(update)
        if self.name == "stable_adamw":
            update /= max(1.0, np.sqrt(np.mean(g**2 / np.maximum(v_hat, EPS**2))))
        return w - LR * update

    def _muon(self, key: str, g: np.ndarray, decay: float) -> np.ndarray:
        m = MOMENTUM * self.moments[key][0] + g
        self.moments[key] = m, m
        rows = self.stacked.get(key.split(".")[-2], ()) if "." in key else ()
        update = np.concatenate([orthogonal(block) for block in np.split(g + MOMENTUM * m, np.cumsum(rows[:-1]))])
        return (1 - LR * decay) * self.weights[key] - LR * update


def orthogonal(g: np.ndarray) -> np.ndarray:
    """Jordan's NewtonSchulz5, times 0.2 * sqrt(max(rows, columns))."""
    x = g / np.linalg.norm(g)
    for _ in range(STEPS):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return 0.2 * np.sqrt(max(g.shape)) * x
