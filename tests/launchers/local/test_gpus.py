"""GPU count without /proc/driver/nvidia, and the report of a GPU that cannot be used."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from data_prep.common.errors import UserError
from launchers.local import gpus

NO_NVML = "no-such-library.so"
NVML = """
int nvmlInit_v2(void) { return RESULT; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return 0; }
int nvmlShutdown(void) { return 0; }
"""


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ((), 0),
        (("proc/driver/nvidia/gpus/0000:0f:00.0", "proc/driver/nvidia/gpus/0000:10:00.0"), 2),
        (("dev/nvidia0", "dev/nvidia1", "dev/nvidia11", "dev/nvidiactl", "dev/nvidia-uvm"), 3),
        (("proc/driver/nvidia/gpus/0000:0f:00.0", "dev/nvidia0"), 1),
        (("dev/dxg",), 0),
    ],
)
def test_device_files_are_counted_without_nvml(tmp_path, files, count):
    touch(*(tmp_path / name for name in files))
    assert gpus.gpu_count(tmp_path, NO_NVML) == count


def nvml(folder: Path, result: int) -> str:
    """A library with the functions of NVML; `result` is the answer of its start."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    source, library = folder / "nvml.c", folder / "libnvml.so"
    source.write_text(NVML.replace("RESULT", str(result)))
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    return str(library)


def test_nvml_counts_before_device_files(tmp_path):
    """WSL2 has only /dev/dxg. A library that cannot start, or is not NVML, counts nothing."""
    (tmp_path / "sound").mkdir()
    assert gpus.gpu_count(tmp_path, nvml(tmp_path / "sound", result=0)) == 3
    assert gpus.gpu_count(tmp_path, "libc.so.6") == 0
    touch(tmp_path / "dev/nvidia0")
    assert gpus.gpu_count(tmp_path, nvml(tmp_path, result=9)) == 1


def test_gpus_of_amd_are_counted_for_a_rocm_build_alone(tmp_path, monkeypatch):
    """Numbers of 0 are processors. A container without GPUs lacks the device file."""
    touch(tmp_path / "dev/kfd")
    for place, number in enumerate((0, 0, 51110, 22683)):
        touch(file := tmp_path / f"sys/class/kfd/kfd/topology/nodes/{place}/gpu_id")
        file.write_text(f"{number}\n")
    torch_of(tmp_path, monkeypatch, "cuda: Optional[str] = None")
    assert gpus.gpu_count(tmp_path, NO_NVML) == 0
    torch_of(tmp_path, monkeypatch, "hip: Optional[str] = '7.0.1'")
    assert gpus.gpu_count(tmp_path, NO_NVML) == 2
    assert gpus.check_device(tmp_path, NO_NVML) == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus.gpu_count(tmp_path, NO_NVML) == 1
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (tmp_path / "dev/kfd").unlink()
    assert gpus.gpu_count(tmp_path, NO_NVML) == 0


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        *((word, 0) for word in ("", "-1", "NoDevFiles", "none", "void", "all", " ", ",0", "-1,0", "0,0", "cuda:0")),
        *(("0", 1), (" 0 , 3 ", 2), ("2,3", 2), ("0,1,-1,2", 2), ("0,,1", 1), ("1,GPU-1a", 1)),
        *(("GPU-1a,GPU-2b,", 2), ("GPU-1a,0", 1), ("MIG-GPU-1a/3/0", 1), ("MIG-1a,MIG-2b", 2)),
    ],
)
def test_visible_devices_decide(tmp_path, monkeypatch, visible, count):
    """As torch.cuda reads them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    touch(*(tmp_path / f"dev/nvidia{number}" for number in range(8)))
    assert gpus.gpu_count(tmp_path, NO_NVML) == count
    assert len(torch.cuda._parse_visible_devices()) == count
    if not count:
        assert ("uses the CPU" in gpus.check_device(tmp_path, NO_NVML)) == (visible not in ("", "-1"))


def pci_device(root: Path, vendor: str, kind: str) -> None:
    folder = root / "sys/bus/pci/devices/0000:0f:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


@pytest.mark.parametrize("sign", ["dev/dxg", "dev/nvidiactl", "PCI"])
def test_a_gpu_without_a_working_driver_is_an_error(tmp_path, sign):
    pci_device(tmp_path, "0x10de", "0x030200") if sign == "PCI" else touch(tmp_path / sign)
    with pytest.raises(UserError, match=r"its driver does not answer.*CUDA_VISIBLE_DEVICES="):
        gpus.check_device(tmp_path, NO_NVML)


@pytest.mark.parametrize(("vendor", "kind"), [("0x10de", "0x040300"), ("0x1002", "0x030000")])
def test_other_devices_are_no_sign_of_a_gpu(tmp_path, vendor, kind):
    """The sound of an NVIDIA card, and a GPU of another maker."""
    pci_device(tmp_path, vendor, kind)
    assert not gpus.check_device(tmp_path, NO_NVML)


@pytest.mark.parametrize(("name", "value"), [("CUDA_VISIBLE_DEVICES", ""), ("DS_ACCELERATOR", "cpu")])
def test_a_user_may_choose_the_cpu(tmp_path, monkeypatch, name, value):
    touch(tmp_path / "dev/nvidiactl")
    monkeypatch.setenv(name, value)
    assert not gpus.check_device(tmp_path, NO_NVML)


def test_a_cuda_build_without_a_gpu_gives_a_notice_and_a_cpu_build_with_gpus_is_an_error(tmp_path, monkeypatch):
    for cuda in ("cuda: Optional[str] = '12.8'", "cuda = '13.0'"):
        torch_of(tmp_path, monkeypatch, cuda)
        assert "No GPU was found, so the run uses the CPU" in gpus.check_device(tmp_path, NO_NVML)
    torch_of(tmp_path, monkeypatch, "cuda: Optional[str] = None")
    touch(tmp_path / "dev/nvidia0", tmp_path / "dev/nvidia1")
    with pytest.raises(UserError, match="This machine has 2 GPUs, but torch is a CPU build"):
        gpus.check_device(tmp_path, NO_NVML)


def torch_of(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Have the first torch of the search path state this in its file of versions."""
    package = folder / "packages/torch"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\nxpu: Optional[str] = None\n")
    monkeypatch.setattr("sys.path", [str(package.parent)])
