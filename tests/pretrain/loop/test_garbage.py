"""Garbage is collected at chosen steps alone, and the memory of reference cycles does not grow."""

import gc
import weakref

from pretrain.loop.garbage import ChosenCollections
from pretrain.train import allocator_settings


class Node:
    """An object that refers to itself, as tracebacks and hooks do."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_of_steps_are_freed_at_chosen_steps():
    alive: list[weakref.ref] = []
    most = 0
    with ChosenCollections() as collections:
        assert not gc.isenabled()
        for step in range(1, 1001):
            alive += [weakref.ref(Node()) for _ in range(10)]
            collections.after_step(step)
            alive = [reference for reference in alive if reference()]
            most = max(most, len(alive))
            assert bool(alive) == (step % 200 != 0)
    assert most == 1990
    assert gc.isenabled()


def test_cycles_from_before_are_freed_afterwards():
    """As those of an engine that a rollback replaces."""
    node = Node()
    reference = weakref.ref(node)
    with ChosenCollections():
        del node
        gc.collect()
        assert reference(), "not frozen"
    gc.collect()
    assert not reference()


def test_settings_of_the_allocator_do_not_replace_the_user_s():
    assert allocator_settings({}) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert allocator_settings({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}) == {}
    assert allocator_settings({"PYTORCH_ALLOC_CONF": ""}) == {}
