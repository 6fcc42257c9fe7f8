"""Memory and CPU of the machine, and the limits of control groups."""

from __future__ import annotations

import pytest

from rlpost.io import system as machine

MEMINFO = "MemTotal:       1000 kB\nMemFree:        100 kB\nMemAvailable:   800 kB\n"
FREE = machine.Memory(1000 << 10, 800 << 10, None)


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Write files of the system, by their paths without the first slash."""

    def write(**files: str) -> None:
        for name, text in {"proc/meminfo": MEMINFO, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{text}\n")

    monkeypatch.setattr(machine, "_ROOT", tmp_path)
    return write


V2 = "sys/fs/cgroup/slurm/job7"
V1 = "sys/fs/cgroup/memory/docker"


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({}, FREE),
        ({f"{V2}/memory.max": "max"}, FREE),
        (
            {f"{V2}/memory.max": "409600", f"{V2}/memory.current": "102400"},
            machine.Memory(1000 << 10, 300 << 10, 400 << 10),
        ),
        (
            {"sys/fs/cgroup/slurm/memory.max": "204800", f"{V2}/memory.max": "409600"},
            machine.Memory(1000 << 10, 800 << 10, 200 << 10),
        ),
        ({f"{V1}/memory.limit_in_bytes": "9223372036854771712"}, FREE),
        (
            {f"{V1}/memory.limit_in_bytes": "512000", f"{V1}/memory.usage_in_bytes": "600000"},
            machine.Memory(1000 << 10, 0, 500 << 10),
        ),
    ],
)
def test_control_groups_limit_memory(system, files, memory):
    groups = "4:cpu,cpuacct:/docker\n3:memory:/docker\n0::/slurm/job7"
    system(**{"proc/self/cgroup": groups, **files})
    assert machine.memory() == memory


def test_a_cpu_has_a_name_also_if_the_system_hides_it(system):
    system(
        **{"proc/cpuinfo": "processor : 0\nmodel name : Fast\ncpu family : 26\nmodel : 2\n\nx : y"}
    )
    assert machine.cpu_model() == "Fast (family 26, model 2)"
    system(**{"proc/cpuinfo": "processor : 0\nBogoMIPS : 50"})
    assert machine.cpu_model()


def test_a_system_without_proc_has_its_memory_from_sysconf(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_ROOT", tmp_path / "none")
    found = machine.memory()
    assert (found.available, found.limit) == (None, None)
    assert found.total is None or found.total > 1 << 20
