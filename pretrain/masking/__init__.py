"""Masking: which tokens of a row are predicted, and what the model sees instead.

`MaskedTokens` draws the masks of rows in units of a strategy: tokens, words or spans, with equal chances
or by weight. Each mask is keyed by seed and position (Philox), so every epoch draws new masks and any step can
be repeated. `mask_rate` is the schedule of the mask rate.
"""

from pretrain.masking.mask_rate import largest_mask_rate, mask_rate, scheduled
from pretrain.masking.masked_tokens import MaskedTokens
from pretrain.masking.rows import IGNORED, Masked, RowGroup, Rows, TokenFlag, Vocabulary, labelled
from pretrain.masking.selection import count, of_rows, random_subset
from pretrain.masking.unit_weights import cached_weights
from pretrain.masking.units import concatenated_ranges
