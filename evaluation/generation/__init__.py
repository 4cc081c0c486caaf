"""Generate text: mask-predict, Gibbs sampling, left to right."""
