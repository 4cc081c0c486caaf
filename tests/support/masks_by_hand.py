"""The rules of masking in plain Python, token by token, as docs/masking.md states them; no arrays."""

import math
from collections.abc import Iterator

import numpy as np

from pretrain.masking import IGNORED, Masked, MaskedTokens, Rows, TokenFlag
from pretrain.masking.selection import of_columns, of_rows
from pretrain.masking.units import SpanUnits, Strategy, TokenUnits
from pretrain.philox import Key

Unit = list[int]  # slots of a row, one after the other


def by_hand(mask: MaskedTokens, rows: Rows, rate: float) -> Masked:
    """The expected result of `mask(rows, rate)`."""
    n_rows, seq_len = rows.tokens.shape
    places = mask.slots(seq_len)
    tokens, positions, labels = [], [], []
    for row in range(n_rows):
        seen, predicted = _row(mask, rows, row, rate)
        assert len(predicted) <= places
        tokens += seen
        unused = places - len(predicted)
        positions += [row * seq_len + slot for slot in predicted] + [row * seq_len] * unused
        labels += [int(rows.tokens[row, slot]) for slot in predicted] + [IGNORED] * unused
    return Masked(np.array(tokens), np.array(positions), np.array(labels))


def _row(mask: MaskedTokens, rows: Rows, row: int, rate: float) -> tuple[list[int], list[int]]:
    """The input of each slot, and the predicted slots."""
    tokens, place = rows.tokens[row].tolist(), rows.row_ids[row : row + 1]
    seq_len, places = len(tokens), mask.slots(len(tokens))
    ordinary = [bool(mask.vocabulary.is_ordinary[token]) for token in tokens]
    starts = [bool(mark & TokenFlag.WORD_START) for mark in rows.flags[row].tolist()]
    draws = of_columns(mask.key, place, seq_len + 3 * places + 2)[0].tolist()
    words = list(_words(ordinary, starts))
    units = _units(mask, words, place, seq_len)
    k = (round(rate * 2**32) * sum(ordinary) + 2**31) // 2**32

    def order(unit: Unit) -> tuple[int, int]:
        return draws[unit[0]], unit[0] ^ draws[0]

    if mask.weights:
        chosen = _by_weight(mask, rows, row, units, k, draws[-2] | draws[-1] << 16)
    elif mask.by_token:
        chosen = sorted(units, key=order)[:k]
    else:
        chosen = _systematic(units, k, draws[-2] | draws[-1] << 16, order)
    predicted = sorted(slot for unit in chosen for slot in unit)
    sharing = {"unit": units, "token": [[slot] for unit in units for slot in unit]}
    seen = list(tokens)
    for number, slot in enumerate(predicted):
        (together,) = (group for group in sharing[mask.masking.replacement.per] if slot in group)
        first = min(other for other in together if other in predicted)
        fate = draws[seq_len + predicted.index(first)]
        at = seq_len + places + 2 * number
        seen[slot] = _seen(mask, tokens[slot], fate, draws[at] | draws[at + 1] << 16)
    return seen, predicted


def _seen(mask: MaskedTokens, token: int, fate: int, pick: int) -> int:
    shares, vocabulary = mask.masking.replacement, mask.vocabulary
    if fate < round(shares.mask * 2**16):
        return vocabulary.mask
    if fate >= round((shares.mask + shares.random) * 2**16):
        return token
    special = vocabulary.special_ids
    others = [id for id in range(vocabulary.size) if id not in special and id != token]
    return others[pick * len(others) >> 32]


def _systematic(units: list[Unit], k: int, turn: int, order) -> list[Unit]:
    """Units around a circle of as many tokens as they have, turned: those that begin within the first k."""
    slots = [slot for unit in units for slot in unit]
    if not slots:
        return []
    across = slots[turn * len(slots) >> 32]
    (first,) = (unit for unit in units if across in unit)
    at, chosen = -first.index(across), []
    for unit in [first, *sorted((unit for unit in units if unit is not first), key=order)]:
        if at % len(slots) < k:
            chosen.append(unit)
        at += len(unit)
    return chosen


def _by_weight(mask: MaskedTokens, rows: Rows, row: int, units: list[Unit], k: int, turn: int) -> list[Unit]:
    """Units in the order of -log(u) / weight."""
    of_slots = _weights_by_hand(mask, rows, row)
    columns = of_columns(mask.weight_key, rows.row_ids[row : row + 1], 2 * rows.tokens.shape[1])[0].tolist()
    race = {}
    for number, unit in enumerate(units):
        weight = sum(of_slots[slot] for slot in unit) / len(unit)
        u = ((columns[2 * unit[0]] | columns[2 * unit[0] + 1] << 16) + 0.5) / 2**32
        if weight:
            race[number] = -math.log(u) / weight
    queue = [units[number] for number in sorted(race, key=race.__getitem__)]
    k, taken, chosen = min(k, sum(map(len, queue))), 0, []
    for unit in queue:
        if taken + (turn * len(unit) >> 32) < k:
            chosen.append(unit)
        taken += len(unit)
    return chosen


def _weights_by_hand(mask: MaskedTokens, rows: Rows, row: int) -> list[float]:
    weights, pairs = mask.weights, zip(rows.tokens[row].tolist(), rows.flags[row].tolist(), strict=True)
    return [weights.of_ids[token] * (1 if flag & TokenFlag.TARGET else weights.unmarked) for token, flag in pairs]


def _runs(ordinary: list[bool]) -> Iterator[Unit]:
    run: Unit = []
    for slot, is_ordinary in enumerate([*ordinary, False]):
        if is_ordinary:
            run.append(slot)
        elif run:
            yield run
            run = []


def _words(ordinary: list[bool], starts: list[bool]) -> Iterator[Unit]:
    for run in _runs(ordinary):
        word: Unit = []
        for slot in run:
            if word and starts[slot]:
                yield word
                word = []
            word.append(slot)
        yield word


def _units(mask: MaskedTokens, words: list[Unit], place: np.ndarray, seq_len: int) -> list[Unit]:
    """The row's units; those that are too long are cut."""
    number = 0
    if len(mask.strategies) > 1:
        draw = int(of_rows(mask.choice_key, place)[0])
        number = sum(draw >= bound for bound in mask.bounds.tolist())
    strategy, key = mask.strategies[number], mask.unit_keys[number]
    whole = _joined(strategy, words, key, place, seq_len)
    return [unit[at : at + strategy.longest] for unit in whole for at in range(0, len(unit), strategy.longest)]


def _joined(strategy: Strategy, words: list[Unit], key: Key, place: np.ndarray, seq_len: int) -> list[Unit]:
    if isinstance(strategy, TokenUnits):
        return [[slot] for word in words for slot in word]
    draws = of_columns(key, place, seq_len)[0].tolist()
    units: list[Unit] = []
    first = spans = left = 0  # of a run its first word and its spans; words that the span still takes
    for number, word in enumerate(words):
        new_run = number == 0 or words[number - 1][-1] + 1 != word[0]
        if new_run:
            first, spans = number, 0
        if isinstance(strategy, SpanUnits):
            begins = new_run or left == 0
            if begins:  # span j of a run by the draw of its word j
                left, spans = _span(strategy, draws[words[first + spans][0]]), spans + 1
            left -= 1
        else:
            begins = True
        if begins:
            units.append([])
        units[-1] += word
    return units


def _span(strategy: SpanUnits, draw: int) -> int:
    """The length by its distribution: (1 - p) ** (length - 1), up to the longest."""
    weights = [(1 - strategy.p) ** length for length in range(strategy.max_words)]
    total, length = 0.0, 1
    for weight in weights[:-1]:
        total += weight
        if draw < round(total / sum(weights) * 2**16):
            break
        length += 1
    return length
