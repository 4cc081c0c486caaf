"""Factory of the objective, mask rate and masking strategy of a configuration."""

from pretrain.config import Config, MaskingConfig, StrategyName
from pretrain.masking import MaskedTokens, Objective, Replacement, Vocabulary
from pretrain.masking.collocation_units import collocations_of
from pretrain.masking.mask_rate import largest_mask_rate, mask_rate
from pretrain.masking.units import NGrams, Spans, Strategy, TokenUnits, WholeWords
from pretrain.objectives.causal import CausalTokens
from pretrain.objectives.repair import RepairObjective


def objective_of(config: Config, vocabulary: Vocabulary, seed: int, purpose: str) -> Objective:
    """Create the objective of a configuration; see MaskedTokens for seed and purpose.

    Raises:
        UserError: if a required file is missing, damaged, or made with another tokenizer.
    """
    if config.causal:
        return CausalTokens(vocabulary)
    masking = config.masking
    if config.objective == "repair":
        return RepairObjective(vocabulary, largest_mask_rate(masking), seed, purpose)
    strategies = [(strategy_of(masking, name, vocabulary), weight) for name, weight in masking.weights.items()]
    shares = masking.replacement
    replacement = Replacement(shares.mask, shares.random, shares.per)
    return MaskedTokens(vocabulary, strategies, largest_mask_rate(masking), replacement, seed, purpose)


def rate_at(config: Config, steps_done: int) -> float:
    """The share of a row's ordinary tokens to predict in the step after `steps_done` steps."""
    if config.causal:
        return 1.0
    return mask_rate(config.masking, steps_done, config.train.steps)


def strategy_of(masking: MaskingConfig, name: StrategyName, vocabulary: Vocabulary) -> Strategy:
    """Create a masking strategy with its settings."""
    if name == "whole_word":
        return WholeWords()
    if name == "span":
        return Spans(masking.span.p, masking.span.max_words)
    if name == "ngram":
        return NGrams(masking.ngram)
    if name == "collocation":
        assert masking.collocations is not None  # the configuration was checked
        return collocations_of(masking.collocations, vocabulary)
    return TokenUnits()
