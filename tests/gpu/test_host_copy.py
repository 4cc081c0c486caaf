"""A copy of a state on a GPU does not change while the state changes."""

import torch

from pretrain.engine.host_copy import HostCopies


def test_pinned_copies_are_of_the_moment_and_use_their_memory_again():
    flat = torch.randn(1 << 24, device="cuda")
    state = {"weights": {"a": flat[:100].view(10, 10), "b": flat[100:]}, "step": torch.tensor(3.0), "lr": (0.1, 0.2)}
    copies, places = HostCopies(), set()
    for _ in range(2):
        copies.restart()
        wanted = flat.cpu()
        found = copies.copy(state)
        flat.mul_(2)
        torch.cuda.synchronize()
        assert torch.equal(found["weights"]["a"].flatten(), wanted[:100])
        assert torch.equal(found["weights"]["b"], wanted[100:])
        assert found["weights"]["b"].is_pinned()
        assert (found["step"], found["lr"]) == (3.0, (0.1, 0.2))
        places.add(found["weights"]["b"].data_ptr())
    assert len(places) == 1
