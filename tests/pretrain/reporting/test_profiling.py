"""Traces and tables of chosen steps. That a profile changes nothing is tested in tests/system."""

import gzip
import json
import time

import torch

from pretrain.reporting import Profile
from pretrain.run import PhaseMarker


def make(wanted, folder, marker, steps_done, finish=lambda: None):
    return Profile(wanted, folder / "profile", marker, steps_done, rank=0, finish=finish)


def run(profile, marker, steps):
    """Steps of two phases; returns the steps with a listener."""
    heard = []
    for step in steps:
        profile.before(step)
        for phase in ("data", "forward"):
            marker.enter(phase, step)
            torch.ones(8).sum()
            time.sleep(0.002)
        heard += [step] if marker.listener else []
        profile.after(step)
    return heard


def test_the_wanted_steps_alone_are_in_the_trace(tmp_path, capsys):
    marker = PhaseMarker()
    profile = make((3, 4), tmp_path, marker, 0, finish=lambda: torch.ones(8).prod())
    assert run(profile, marker, range(1, 7)) == [3, 4]
    written = (tmp_path / "profile" / "steps-3-4.txt").read_text()
    assert capsys.readouterr().err == written
    assert written.startswith("steps 3 to 4 on rank 0\n")
    calls = {line.split()[0]: line.split()[-1] for line in written.splitlines()[1:] if line.strip()}
    assert (calls["data"], calls["forward"], calls["aten::sum"]) == ("2", "2", "4")
    names = [event.get("name") for event in trace(tmp_path / "profile" / "steps-3-4-rank-00000.json.gz")]
    assert names.count("data") == names.count("forward") == 2
    assert "aten::sum" in names
    assert names.count("aten::prod") == 1, "what was in flight has ended before the profiler"


def trace(path):
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_a_run_that_goes_on_within_the_steps_and_stops_there_profiles_those_it_does(tmp_path):
    marker = PhaseMarker()
    profile = make((3, 9), tmp_path, marker, 4)
    assert run(profile, marker, [5, 6]) == [5, 6]
    profile.close()
    assert marker.listener is None
    assert (tmp_path / "profile" / "steps-5-6.txt").exists()


def test_a_disk_without_room_costs_the_profile_and_not_the_run(tmp_path, capsys):
    (tmp_path / "profile").write_text("a file where the folder should be")
    marker = PhaseMarker()
    profile = make((1, 1), tmp_path, marker, 0)
    run(profile, marker, [1])
    assert capsys.readouterr().err.startswith(f"warning: {tmp_path}/profile was not written: ")
