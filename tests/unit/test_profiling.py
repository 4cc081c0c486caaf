"""Times by part, and what is said of steps that are past; that a profile changes nothing: tests/integration."""

import gzip
import json
import time

import pytest
import torch

from pretrain import profiling
from pretrain.config.training import ProfileConfig
from pretrain.guards.pulse import Pulse
from pretrain.profiling import Profile, Spent, spent_by_phase, table_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def rank(monkeypatch):
    monkeypatch.setattr(profiling.dist, "get_rank", lambda: 0)


def stamp(phase, seconds, cpu):
    return profiling._Stamp(phase, seconds, cpu, None)


def test_a_phase_lasts_until_the_next_and_adds_up_over_the_steps():
    stamps = [stamp("data", 1.0, 0.0), stamp("forward", 1.5, 0.1), stamp("data", 2.0, 0.9), stamp("start", 2.25, 1.0)]
    assert spent_by_phase(stamps) == {
        "data": Spent(0.75, pytest.approx(0.2), None),
        "forward": Spent(0.5, pytest.approx(0.8), None),
    }


def test_the_table_is_in_milliseconds_a_step():
    spent = {"data": Spent(0.01, 0.004, 0.0), "step": Spent(0.03, 0.02, 0.028)}
    lines = table_of(spent, [7, 8]).splitlines()
    assert lines[0] == "steps 7 to 8 on rank 0, milliseconds a step"
    assert lines[2].split() == ["data", "5.00", "25.0%", "2.00", "0.00"]
    assert lines[3].split() == ["optimizer", "15.00", "75.0%", "10.00", "14.00"]
    assert lines[4].split() == ["all", "20.00", "100.0%", "12.00", "14.00"]


def run(profile, pulse, steps):
    """Steps of two phases; in which of them somebody listened."""
    heard = []
    for step in steps:
        profile.before(step)
        for phase in ("data", "forward"):
            pulse.enter(phase, step)
            torch.ones(8).sum()
            time.sleep(0.002)
        heard += [step] if pulse.listener else []
        profile.after(step)
    return heard


def test_the_wanted_steps_alone_are_in_the_trace(tmp_path, capfd):
    pulse = Pulse()
    profile = Profile(ProfileConfig(steps=(3, 4)), tmp_path / "profile", pulse, CPU, steps_done=0)
    assert run(profile, pulse, range(1, 7)) == [3, 4]
    written = (tmp_path / "profile" / "steps-3-4.txt").read_text()
    assert capfd.readouterr().err == written
    assert [line.split()[0] for line in written.splitlines()[2:5]] == ["data", "forward", "all"]
    names = [event.get("name") for event in trace(tmp_path / "profile" / "steps-3-4-rank-00000.json.gz")]
    assert names.count("data") == names.count("forward") == 2
    assert "aten::sum" in names


def trace(path):
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_a_run_that_goes_on_within_the_steps_and_stops_there_profiles_those_it_does(tmp_path):
    pulse = Pulse()
    profile = Profile(ProfileConfig(steps=(3, 9)), tmp_path / "profile", pulse, CPU, steps_done=4)
    assert run(profile, pulse, [5, 6]) == [5, 6]
    profile.close()
    assert pulse.listener is None
    assert (tmp_path / "profile" / "steps-5-6.txt").exists()


def test_steps_that_are_past_are_said_in_one_line(tmp_path, capsys):
    pulse = Pulse()
    profile = Profile(ProfileConfig(steps=(3, 4)), tmp_path / "profile", pulse, CPU, steps_done=4)
    assert run(profile, pulse, [5, 6]) == []
    profile.close()
    assert capsys.readouterr().err == "train.profile: steps 3 to 4 are past, so that nothing is profiled\n"
    assert not (tmp_path / "profile").exists()


def test_a_disk_without_room_costs_the_profile_and_not_the_run(tmp_path, capsys):
    (tmp_path / "profile").write_text("a file where the folder should be")
    pulse = Pulse()
    profile = Profile(ProfileConfig(steps=(1, 1)), tmp_path / "profile", pulse, CPU, steps_done=0)
    run(profile, pulse, [1])
    assert capsys.readouterr().err.startswith(f"warning: {tmp_path}/profile was not written: ")
