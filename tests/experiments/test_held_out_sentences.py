"""Held-out sentences that the experiments take from a training file."""

from experiments.sst2_finetuning import split

ROWS = [("a fine old ship ", "1"), ("fine old", "1"), ("old ship", "0"), ("a dull film", "0"), ("film", "0")]
ROWS += [("fine film", "1"), ("ship old", "0")]


def test_nothing_that_is_part_of_a_held_out_sentence_is_trained_on():
    left = {"a fine old ship ": 4, "a dull film": 5, "fine film": 5, "ship old": 6}
    seen = set()
    for seed in range(20):
        train, held_out = split(ROWS, 1, seed)
        ((text, _),) = held_out
        seen.add(text)
        assert (train, held_out) == split(ROWS, 1, seed)
        assert [row for row in train if f" {row[0].strip()} " in f" {text.strip()} "] == []
        assert len(train) == left[text]
    assert seen == left.keys(), "parts are no sentences"
