"""Under limits of the system: it works, or says in one line which limit and what to do.

Each test is a program of its own, which sets the limit for itself and runs a real loader.
"""

import functools
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.programs import run_program

ROOT = Path(__file__).parents[3]

BEGIN = """
import os, resource, sys, warnings
import torch
import lit_loader.loader
from lit_loader import DataLoader
from lit_loader.errors import LoaderError

MB = 1 << 20


class Rows(torch.utils.data.Dataset):
    # Sample `index` is `nbytes` bytes, each `index % 251`.
    def __init__(self, length, nbytes):
        self.length, self.nbytes = length, nbytes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((self.nbytes,), index % 251, dtype=torch.uint8)


def whole(index, batch):
    return bool((batch == index % 251).all())


warnings.filterwarnings("ignore", message="This DataLoader will create")


def load(dataset, **options):
    return DataLoader(dataset, **{"batch_size": None, "num_workers": 2,
                                  "multiprocessing_context": "fork", **options})


def limit(which, value):
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


def read(path):
    with open(path) as file:
        return file.read()


def in_use(field):
    # Bytes of address space (0) or of private memory (5), as the limits count them.
    return int(read("/proc/self/statm").split()[field]) * resource.getpagesize()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


list(load(Rows(8, 8)))  # everything is imported before a limit is set
"""

IN_NAMESPACE = (
    "mount -t tmpfs -o size={size} none {place} && exec env TMPDIR={tmpdir} {python} {program}"
)


def run(
    program: str, tmp_path: Path, shell: str | None = None, forked: bool = True, **words: object
) -> list[str]:
    """Run a program, perhaps by a shell with mounts of its own; returns the lines it printed."""
    path = tmp_path / "program.py"
    path.write_text(BEGIN + textwrap.dedent(program))
    if shell is None:
        return run_program(path, options=("-W", "error"), forked=forked).splitlines()
    script = shell.format(python=f"{sys.executable} -W error", program=path, **words)
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


@functools.cache
def can_mount() -> bool:
    """Whether a program may have mounts of its own here."""
    if shutil.which("unshare") is None:
        return False
    script = ["sh", "-c", "mount -t tmpfs none /mnt"]
    command = ["unshare", "--user", "--map-root-user", "--mount", *script]
    return subprocess.run(command, capture_output=True, timeout=30).returncode == 0


# Open files ------------------------------------------------------------------------------------


def test_ten_thousand_kept_batches_under_256_open_files(tmp_path: Path) -> None:
    program = """
        limit(resource.RLIMIT_NOFILE, 256)
        iterator = iter(load(Rows(10_000, 100), num_workers=20))
        kept = [next(iterator)]
        begun = descriptors()
        kept.extend(iterator)
        print(len(kept), all(map(whole, range(10_000), kept)), descriptors() <= begun, begun < 200)
    """
    assert run(program, tmp_path) == ["10000 True True True"]


def test_too_few_open_files_for_the_workers(tmp_path: Path) -> None:
    """At every limit there is: all batches, or one line that names it; and nothing is left open."""
    program = """
        begun = descriptors()
        for most in range(begun + 1, begun + 60, 7):
            limit(resource.RLIMIT_NOFILE, most)
            try:
                with load(Rows(20, 8), num_workers=8) as loader:
                    outcome = all(map(whole, range(20), loader))
            except LoaderError as error:
                outcome = str(error)
            limit(resource.RLIMIT_NOFILE, 256)
            print(outcome if descriptors() <= begun else f"left open: {descriptors()} > {begun}")
    """
    lines = run(program, tmp_path, forked=False)  # which has no others open
    assert len(lines) == 9  # each of them one
    assert lines[-1] == "True"
    refused = [line for line in lines if line != "True"]
    assert len(refused) >= 3
    assert all("ulimit -n" in line for line in refused), refused


# Memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [600, 3000], ids="{} MB".format)
def test_a_small_address_space_and_large_batches(tmp_path: Path, room: int) -> None:
    program = f"""
        limit(resource.RLIMIT_AS, in_use(0) + {room} * MB)
        sizes = [1, 5 * MB, 300, 11 * MB, 2 * MB]

        class Mixed(Rows):
            def __getitem__(self, index):
                return torch.full((sizes[index % 5],), index % 251, dtype=torch.uint8)

        found = [whole(i, b) and len(b) == sizes[i % 5] for i, b in enumerate(load(Mixed(100, 0)))]
        print(len(found), all(found))
    """
    assert run(program, tmp_path) == ["100 True"]


def test_an_address_space_too_small_for_a_batch(tmp_path: Path) -> None:
    program = """
        class Growing(Rows):
            def __getitem__(self, index):
                return torch.zeros(index * 100 * MB, dtype=torch.uint8)

        limit(resource.RLIMIT_AS, in_use(0) + 700 * MB)
        try:
            for batch in load(Growing(9, 0), num_workers=1):
                print(len(batch) // MB)
        except LoaderError as error:
            print(str(error).splitlines()[0])
    """
    lines = run(program, tmp_path)
    assert lines[:2] == ["0", "100"]
    assert "shared memory" in lines[-1]
    assert "ulimit -v" in lines[-1]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_limit_of_a_worker_s_private_memory(method: str, tmp_path: Path) -> None:
    """What is reserved for shared memory does not count."""
    program = f"""
        def private_memory(worker):
            limit(resource.RLIMIT_DATA, in_use(5) + 150 * MB)

        if __name__ == "__main__":
            options = {{"worker_init_fn": private_memory, "multiprocessing_context": "{method}"}}
            print(all(map(whole, range(20), load(Rows(20, 1 * MB), **options))))
    """
    assert run(program, tmp_path) == ["True"]


def test_a_limit_of_file_sizes(tmp_path: Path) -> None:
    """Slots become smaller; a batch beyond the limit is refused by name."""
    program = """
        limit(resource.RLIMIT_FSIZE, 64 * MB)
        print(all(map(whole, range(300), load(Rows(300, 200_000)))))
        try:
            list(load(Rows(3, 70 * MB)))
        except LoaderError as error:
            print(error)
    """
    works, *message = run(program, tmp_path)
    assert works == "True"
    assert "shared memory" in message[0]


# Where the memory lies -------------------------------------------------------------------------


FULL_DISK = """
    del os.memfd_create  # the arena is a file in TMPDIR
    try:
        kept = list(load(Rows(300, 30_000)))
        print(len(kept), all(map(whole, range(300), kept)))
        list(load(Rows(4, 20 * MB)))
    except LoaderError as error:
        print(str(error).splitlines()[0])
"""


@pytest.mark.parametrize("size", [1, 10], ids="{}m".format)
def test_a_full_disk_behind_the_temporary_directory(tmp_path: Path, size: int) -> None:
    """Small slots, or an error; never SIGBUS, as writing into a file on a full disk gives."""
    if can_mount():
        place = tmp_path / "disk"
        place.mkdir()
        words = {"size": f"{size}m", "place": place, "tmpdir": place}
        lines = run(FULL_DISK, tmp_path, IN_NAMESPACE, **words)
    else:  # a disk that says so
        program = f"""
            allocate = os.posix_fallocate

            def nearly_full(fd, offset, nbytes):
                if offset + nbytes > {size} * MB:
                    raise OSError(28, "No space left on device")
                allocate(fd, offset, nbytes)

            os.posix_fallocate = nearly_full
        """
        lines = run(textwrap.dedent(program) + textwrap.dedent(FULL_DISK), tmp_path)
    if size == 1:
        assert len(lines) == 1
        assert "No space left on device" in lines[0]
        assert "TMPDIR" in lines[0]
    else:
        assert lines[0] == "300 True"
        assert "shared memory" in lines[1]
